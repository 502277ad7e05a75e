"""Frontiers, and the share of requests within limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.attainment import (
    Served,
    attained,
    each_request,
    goodput,
    reached,
    served,
    with_dominated,
)
from harness.metrics.intervals import Measurement, error_rate_ends
from harness.metrics.samples import Group, by_load, split
from harness.schema.limits import Slo, parse_gate
from harness.schema.load import ClosedLoop, load_text
from tests.harness.metrics.conftest import build

RATES = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12)


def points(rates: list[tuple[int, int]], label: str = "a") -> list[Served]:
    return [
        Served(label, ClosedLoop(concurrency=i + 1), Measurement(total), Measurement(user))
        for i, (total, user) in enumerate(rates)
    ]


@given(RATES)
def test_a_frontier_falls_and_beats_all_others(rates: list[tuple[int, int]]) -> None:
    found = with_dominated(points(rates))
    best = sorted({(p.total.value, p.user.value) for p in found if not p.dominated})
    assert best and [user for _, user in best] == sorted((user for _, user in best), reverse=True)
    for point in found:
        better = [b for b in best if b[0] >= point.total.value and b[1] >= point.user.value]
        assert better
        if not point.dominated:
            assert better == [(point.total.value, point.user.value)]


@given(RATES, RATES)
def test_engines_do_not_dominate_each_other(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    both = with_dominated([*points(a), *points(b, "b")])
    assert both == [*with_dominated(points(a)), *with_dominated(points(b, "b"))]


@given(st.floats(0.1, 1e3), st.floats(1, 3), st.floats(1, 3))
def test_an_interval_is_turned_round_by_division(value: float, below: float, above: float) -> None:
    known = Measurement(value, (value / below, value * above)).under(60.0)
    assert known.ci is not None and known.value == 60 / value
    assert known.ci == pytest.approx((60 / (value * above), 60 / (value / below)))
    assert Measurement(1.0, (0.0, 2.0)).under(1.0).ci is None


def group(cells: list[list[dict[str, Any]]], load: int = 2) -> Sequence[Group]:
    """The repeats of one engine at one load."""
    rows = [
        {"cell": repeat, "repeat": repeat, "request": i, "load": load_text(ClosedLoop(concurrency=load))}
        | row
        for repeat, cell in enumerate(cells)
        for i, row in enumerate(cell)
    ]
    [repeats] = by_load(split(*build(rows)))
    return repeats


def answer(ttft_ms: float, tpot_ms: float = 10.0, at: float = 0.0) -> dict[str, Any]:
    """Eleven tokens."""
    first = at + ttft_ms / 1e3
    times = [first + i * tpot_ms / 1e3 for i in range(11)]
    return {"t_sched": at, "t_sent": at, "chunks": [(t, 1) for t in times]}


FAILED = {"error": "timeout", "t_end": 1.0}


def test_rates_of_a_group_by_hand() -> None:
    """22 tokens in 0.2 s; 100 tokens a second for each user."""
    [point] = served([group([[answer(99), answer(99)]])], gpus={"roseinfer": 2})
    assert point.total.value == pytest.approx(22 / 0.2 / 2, rel=1e-6)
    assert point.user.value == pytest.approx(100) and point.total.ci is None and not point.dominated
    repeats = [[answer(99)] * 2, [answer(99, 11)] * 2, [answer(99, 9)] * 2]
    [two] = served([group(repeats)], gpus={"roseinfer": 0})
    assert two.user.ci is not None and two.user.ci[0] < 100 < two.user.ci[1] and two.total.ci is not None


@given(RATES, st.data())
def test_an_invalid_load_dominates_none(rates: list[tuple[int, int]], data: st.DataObject) -> None:
    valid = data.draw(st.lists(st.booleans(), min_size=len(rates), max_size=len(rates)))
    found = with_dominated([replace(p, valid=v) for p, v in zip(points(rates), valid, strict=True)])
    alone = with_dominated([point for point in points(rates) if valid[point.load.concurrency - 1]])
    assert [point for point in found if point.valid] == alone


def test_the_interval_of_failures_is_that_of_gates() -> None:
    """Repeats that disagree prove nothing."""
    repeats = group([[answer(50)] * 10, [answer(50)] * 7 + [FAILED] * 3])
    found = reached(repeats, parse_gate("error_rate<=10%")[0])
    assert found is not None and (found.value, found.ci) == (0.15, error_rate_ends([0, 3], [10, 10]))


def test_the_share_within_limits_counts_failures() -> None:
    repeats = group([[answer(50), answer(150), FAILED, answer(50, 30)]])
    assert attained(repeats, Slo(ttft_ms=100)).value == 0.5
    both = attained(repeats, Slo(ttft_ms=100, tpot_ms=20))
    assert both.value == 0.25 and both.ci is not None and both.ci[0] < 0.25 < both.ci[1]
    assert goodput(repeats, Slo(ttft_ms=100)).value == 2.0  # in the second after which one failed


def test_only_limits_between_tokens_are_met_by_an_answer_without_a_value() -> None:
    """An answer of one token of reasoning has neither a time per token nor a first token of the answer."""
    repeats = group([[answer(50) | {"chunks": [(0.05, 1)]}]])
    limits = (Slo(tpot_ms=1), Slo(ttft_ms=60), Slo(ttfo_ms=60))
    assert [attained(repeats, limit).value for limit in limits] == [1, 1, 0]


def test_a_goodput_that_some_repeats_lack_is_not_negative() -> None:
    found = goodput(group([[answer(50)], [answer(150)], [answer(150)]]), Slo(ttft_ms=100))
    assert found.ci is not None and found.ci[0] == 0 < found.value < found.ci[1]


def test_repeats_give_the_interval_of_a_share() -> None:
    cells = [[answer(50)] * good + [answer(150)] * (10 - good) for good in (6, 7, 8)]
    found = attained(group(cells), Slo(ttft_ms=100))
    assert found.value == pytest.approx(0.7) and found.ci == pytest.approx(
        (0.7 - 0.2484, 0.7 + 0.2484), abs=1e-3
    )


def test_what_limits_are_on() -> None:
    repeats = group([[answer(50 + i) for i in range(100)] for _ in range(2)])
    [p50, rate, errors, slow] = parse_gate("ttft_p50<=200ms,req_per_s>=1,error_rate<=1%,ttfo_p50<=9ms")
    assert np.isclose(reached(repeats, p50).value, 99.5)
    assert reached(repeats, rate).value > 1 and reached(repeats, errors).value == 0
    assert reached(repeats, slow) is None


def test_a_percentile_among_failures_has_no_value() -> None:
    repeats = group([[answer(50)] * 98 + [FAILED] * 2])
    [p50, p99] = parse_gate("ttft_p50<=200ms,ttft_p99<=200ms")
    assert np.isclose(reached(repeats, p50).value, 50) and reached(repeats, p99) is None


def test_limits_on_each_request_are_the_strictest() -> None:
    assert each_request(parse_gate("ttft_p99<=1s,ttft_p50<=200ms,req_per_s>=2")) == Slo(ttft_ms=200)
    assert each_request(parse_gate("req_per_s>=2")) is None
