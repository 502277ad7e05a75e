"""How many repeats find a difference, by the figures of cells, and what looking several times costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from harness.metrics.contrast import contrast, judged
from harness.metrics.intervals import LEVEL, Estimate, own_interval, ratio
from harness.metrics.power import decided, of_cells
from harness.schema.load import ClosedLoop
from harness.schema.metrics import LATENCIES
from harness.schema.results import Distribution, OnlineSummary


def cell(label: str, repeat: int, factor: float, valid: bool = True) -> OnlineSummary:
    """A cell whose latencies are so many times 10 ms, in a closed loop."""
    ms = 10 * factor
    levels = dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"), ms)
    latencies = {name: Distribution(**levels, n=50) for name in LATENCIES}
    rates = dict.fromkeys(
        ("offered_req_per_s", "req_per_s", "output_tok_per_s", "total_tok_per_s"), 1 / factor
    )
    counts = dict.fromkeys(("num_success", "prompt_tokens", "completion_tokens", "chunks"), 50)
    return OnlineSummary(
        engine="x", label=label, load=ClosedLoop(concurrency=4), repeat=repeat, num_requests=50, num_error=0,
        duration_s=10, valid=valid, **rates, **counts, **latencies,
    )  # fmt: skip


def cells(spread: float, repeats: int, slower: float = 0.0, labels: str = "ab") -> list[OnlineSummary]:
    signs = [(-1) ** repeat for repeat in range(repeats)]
    return [
        cell(label, repeat, (1 + slower * place) * float(np.exp(spread * sign)))
        for repeat, sign in enumerate(signs)
        for place, label in enumerate(labels)
    ]


def needed(cells: list[OnlineSummary]) -> dict[tuple[str, str], int | None]:
    """How many repeats find 10 % in each headline metric."""
    return {(each.metric, each.statistic): each.repeats_for(0.1) for each in of_cells(cells) if each.primary}


def test_two_repeats_say_how_many_find_a_difference() -> None:
    few, many = needed(cells(0.01, 2)), needed(cells(0.05, 2))
    assert few.keys() == many.keys() >= {("ttft_ms", "p50"), ("output_tok_per_s", "output_tok_per_s")}
    for key, count in many.items():
        assert count is not None and (few[key] or 0) < count
    assert needed(cells(0.05, 1)) == {}, "one repeat shows no spread"
    alone = needed(cells(0.05, 2, labels="a"))
    assert alone.keys() == many.keys() and None not in alone.values()


def test_an_engine_with_an_invalid_cell_is_not_waited_for() -> None:
    valid = cells(0.01, 6, labels="abc")
    invalid = [each.model_copy(update={"valid": each.label != "c" or each.repeat != 3}) for each in valid]
    assert len(of_cells(valid)) == 3 * len(of_cells(invalid)) > 0
    assert decided(of_cells(invalid), 0.1)
    assert decided([], 0.1), "more repeats do not make invalid cells comparable"


@pytest.mark.parametrize(
    ("spread", "repeats", "slower", "enough"),
    [
        (0.01, 4, 0, True),  # 10 % would be found
        (0.1, 4, 0, False),
        (0.05, 50, 0, True),
        (0.1, 10, 0.5, True),  # a verdict on every headline metric
    ],
)
def test_when_repeats_are_enough(spread: float, repeats: int, slower: float, enough: bool) -> None:
    assert decided(of_cells(cells(spread, repeats, slower), looks=7), 0.1) == enough


def test_each_look_has_its_part_of_the_level() -> None:
    rng = np.random.default_rng(1)
    a, b = (Estimate(1.0, rng.lognormal(0, 0.1, 6)) for _ in range(2))
    seven = [dataclasses.replace(each, looks=7) for each in (a, b)]
    once, looked = ratio(a, b), ratio(*seven)
    assert once.p is not None and looked.p == pytest.approx(min(1, 7 * once.p))
    assert once.ci is not None and looked.ci is not None
    assert looked.ci[0] < once.ci[0] < once.ci[1] < looked.ci[1]
    own, wide = own_interval(a), own_interval(seven[0])
    assert own is not None and wide is not None and wide[0] < own[0] < own[1] < wide[1]
    key = ("output_tok_per_s", "output_tok_per_s")
    [single], [one_of_seven] = (
        judged(contrast(ClosedLoop(concurrency=1), {key: x}, {key: y})) for x, y in ((a, b), seven)
    )
    assert single.level == LEVEL and one_of_seven.level == pytest.approx(LEVEL / 7)
    assert (one_of_seven.repeats_for(0.1) or 0) > (single.repeats_for(0.1) or 0)
