"""Which configurations go on, and which are finalists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runs.tuning import Halving, Tuning, tune_results, tuning_of
from harness.schema.facts import Fact
from harness.schema.load import ClosedLoop
from harness.schema.metrics import LATENCIES
from harness.schema.results import Distribution, OnlineSummary, Skipped
from harness.schema.tune import Configuration, Space, TunePlan


def plan_of(count: int, **given: Any) -> TunePlan:
    space = Space.model_validate({"engine": "x", "args": {"--n": list(range(1, count + 1))}})
    configurations = [Configuration(label="x", variant=None)]
    configurations += [
        Configuration(label=f"x (c{n})", variant=f"c{n}", settings={"--n": n}) for n in range(1, count + 1)
    ]
    rest = {"objective": "output_tok_per_s"} | given
    return TunePlan(engine="x", space=space, configurations=configurations, **rest)


def cell(label: str, repeat: int, rate: float, ttft: float = 10.0, errors: int = 0) -> OnlineSummary:
    found = {name: Distribution() for name in LATENCIES}
    found["ttft_ms"] = Distribution(mean=ttft, p50=ttft, p90=ttft, p95=ttft, p99=ttft, max=ttft, n=100)
    return OnlineSummary(
        engine="x", label=label, load=ClosedLoop(concurrency=4), repeat=repeat, num_requests=100,
        num_success=100 - errors, num_error=errors, duration_s=1, offered_req_per_s=1, req_per_s=1,
        output_tok_per_s=rate, total_tok_per_s=rate, prompt_tokens=1, completion_tokens=1, chunks=1, **found,
    )  # fmt: skip


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.integers(2, 5))
def test_the_best_is_never_dropped(costs: list[float], reduction: int) -> None:
    halving = Halving(len(costs), reduction)
    left = list(range(len(costs)))
    for repeats in range(1, reduction * reduction + 1):
        left = [number for number in left if halving.goes_on(number, repeats, costs[number])]
        assert costs.index(min(costs)) in left


@given(st.permutations(range(12)))
def test_one_in_three_of_those_judged_so_far_goes_on(order: list[int]) -> None:
    halving = Halving(12, 3)
    for judged, number in enumerate(order, start=1):
        better = sum(other < number for other in order[:judged])
        assert halving.goes_on(number, 1, float(number)) == (better < max(1, judged // 3))


@pytest.mark.parametrize(
    ("count", "finalists", "rounds"), [(1, 1, 1), (4, 2, 1), (5, 2, 1), (9, 2, 3), (12, 2, 3), (60, 2, 27)]
)
def test_rounds(count: int, finalists: int, rounds: int) -> None:
    plan = plan_of(count, finalists=finalists)
    assert plan.rounds == rounds
    assert plan.cells(5) >= 1 + count + 5 * 2


def test_what_misses_a_limit_or_fails_comes_after_what_does_not() -> None:
    tuning = Tuning(plan_of(4, finalists=3, limits="ttft_p90<=50ms"))
    tuning.take(cell("x", 0, rate=100))
    tuning.take(cell("x (c1)", 0, rate=500, ttft=80))
    tuning.take(cell("x (c2)", 0, rate=90))
    tuning.take(cell("x (c3)", 0, rate=900, ttft=60))
    tuning.all["x (c4)"].fault = "its server died"
    assert tuning.finalists == ["x (c2)", "x (c3)", "x (c1)"]
    states = {found.label: found.state for found in tuning.results(())}
    assert states["x"] == "default" and states["x (c4)"] == "failed"
    assert tuning.results(())[1].limits == {"ttft_p90<=50ms": 80}


def test_a_rate_is_best_high_and_a_latency_low() -> None:
    for objective, best in (("output_tok_per_s", "x (c2)"), ("ttft_p50", "x (c1)")):
        tuning = Tuning(plan_of(2, finalists=1, objective=objective))
        for label, rate, ttft in (("x", 1, 9), ("x (c1)", 1, 5), ("x (c2)", 3, 7)):
            tuning.take(cell(label, 0, rate, ttft))
        assert tuning.finalists == [best]


def test_requests_that_fail_count_against_a_configuration() -> None:
    tuning = Tuning(plan_of(2, finalists=1))
    for label, rate, errors in (("x", 1, 0), ("x (c1)", 9, 40), ("x (c2)", 3, 0)):
        tuning.take(cell(label, 0, rate, errors=errors))
    assert tuning.finalists == ["x (c2)"]


def test_without_rounds_every_configuration_is_a_finalist() -> None:
    tuning = Tuning(plan_of(2, finalists=2))
    assert tuning.decided and tuning.finalists == ["x (c1)", "x (c2)"]


def test_a_finalist_that_could_not_be_compared_has_failed() -> None:
    plan = plan_of(2, finalists=2)
    faults = [
        Skipped(
            engine="x", label=label, load=ClosedLoop(concurrency=4), repeat=plan.rounds, reason="no memory"
        )
        for label in ("x (c1)", "x (c2)")
    ]
    found = tuning_of(plan, [], faults).results({"x", "x (c2)"})
    assert [(each.state, each.reason) for each in found] == [
        ("default", ""),
        ("failed", "no memory"),
        ("finalist", ""),
    ]


def test_what_was_measured_decides_again_as_it_did() -> None:
    plan = plan_of(8)
    cells = [cell(c.label, 0, rate=(7 * n) % 9 + 1) for n, c in enumerate(plan.configurations)]
    tuning = Tuning(plan)
    for summary in cells:
        tuning.take(summary)
    late = [cell("x", plan.rounds, 1.0)]
    fault = Skipped(engine="x", label="x (c8)", load=cells[0].load, repeat=0, reason="no")
    again = tuning_of(plan, [*cells, *late])
    assert again.results(()) == tuning.results(()) and again.finalists == tuning.finalists
    assert tuning_of(plan, cells[:-1], [fault]).results(())[-1].reason == "no"


FAILED = Fact(kind="failures", values={"failed": 3, "requests": 100})


@pytest.mark.parametrize(
    ("default", "best", "reason"),
    [({}, "x (c1)", None), ({"valid": False, "invalid_reasons": [FAILED]}, None, FAILED), (None, None, None)],
)
def test_nothing_is_better_than_a_default_that_is_invalid_or_missing(monkeypatch, default, best, reason):
    rate, value = SimpleNamespace(value=2.0, ci=(1.9, 2.1)), SimpleNamespace(value=1.0)
    better = SimpleNamespace(a=value, b=value, ratio=rate, verdict="better", repeats=(2, 2))
    monkeypatch.setattr("harness.runs.tuning._contrasts", lambda *given: {"x (c1)": better})
    whole = {"x (c1)": {}, **({} if default is None else {"x": default})}
    pooled = [cell(label, 9, 1.0).model_copy(update={"repeat": None, **own}) for label, own in whole.items()]
    found = tune_results(Tuning(plan_of(1, finalists=1)), [], pooled, None)
    assert found.best == best and found.default_invalid == reason
