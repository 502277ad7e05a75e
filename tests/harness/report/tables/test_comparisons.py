"""Differences of two runs as people read them, the noise of one, and how many repeats are needed."""

from __future__ import annotations

import pytest

from harness.report.tables.comparisons import caveats, difference_tables, noise_tables, planning_tables
from harness.report.tables.table import TOO_WIDE, Cell, Column, Table, interval_text
from harness.schema.compare_results import CompareResults, Difference
from harness.schema.load import TraceLoad
from harness.schema.results import Comparison
from harness.schema.run_info import LaunchRecord


def results(**given: object) -> CompareResults:
    known = {
        "engine_a": "vLLM", "engine_b": "vLLM", "load": TraceLoad(scale=1), "metric": "tpot_ms",
        "statistic": "p50", "value_a": 1, "value_b": 170, "difference": 169, "difference_ci": None,
        "ratio": 170.151, "ratio_ci": None, "adjusted_p": None, "verdict": "not enough data",
        "repeats_a": 1, "repeats_b": 1, "missing_samples": 0, "spread": None,
        "repeats_to_find": {"5 %": None, "10 %": None, "20 %": None},
    }  # fmt: skip
    difference = Difference.model_validate(known | given)
    return CompareResults(
        a="a", b="b", outcome="no gate", level=0.05, comparisons=1, obstacles=[], gates=[],
        differences=[difference],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "column", "text"),
    [
        ({"ratio": 170.151}, "change", "170×"),
        ({"ratio": 14.1}, "change", "14.1×"),
        ({"ratio": 2}, "change", "2.00×"),
        ({"ratio": 1.99}, "change", "+99.0 %"),
        ({"ratio": 0.5}, "change", "-50.0 %"),
        ({"missing_samples": 70}, "verdict on B", "needs 70 more requests"),
        ({"missing_samples": 76_008}, "verdict on B", "not enough data in one repeat: use --repeats 5"),
        ({"ratio_ci": (0.0, 6_690_699.0)}, "95 % interval", TOO_WIDE),
        ({"ratio_ci": (3.0, 110.0)}, "95 % interval", "3.00× to 110×"),  # wide, but without 1
        ({"ratio_ci": (0.9, 8.0)}, "95 % interval", "0.90× to 8.00×"),
        ({"ratio": 1.1, "ratio_ci": (0.9, 2.4)}, "95 % interval", "-10.0 % to +140.0 %"),  # as its change
        ({"ratio_ci": (0.9, 4000), "verdict": "no difference"}, "verdict on B", "no difference shown"),
    ],
)
def test_a_difference_reads_as_it_is(given: dict[str, object], column: str, text: str) -> None:
    [table] = difference_tables(results(**given))
    assert table.lines[0][table.headers.index(column)] == text


@pytest.mark.parametrize(("spread", "columns"), [(None, 6), (0.1, 7)])
def test_repeats_to_find_a_difference_are_there_where_the_spread_is_known(
    spread: float | None, columns: int
) -> None:
    found = results(spread=spread)
    [table] = difference_tables(found)
    assert len(table.headers) == len(table.lines[0]) == columns
    assert any("Repeats to find" in said for said in caveats(found)) == (spread is not None)


def test_an_interval_whose_ends_are_far_apart_is_not_written() -> None:
    wide = (0.0, 6_690_699.0)
    assert (
        interval_text(wide, 0) == interval_text((-1.0, 2.0), 0) == interval_text((1.0, 10.1), 1) == TOO_WIDE
    )
    assert interval_text((1.0, 9.9), 1) == "1.0–9.9" and interval_text(None, 1) == ""
    table = Table("t", "t", [Column("a", [Cell.number(3, 0, wide)])])
    assert table.lines == [["3 (too wide)"]]
    assert table.legend == [
        "In brackets: 95 % intervals.",
        "Too wide: the ends of an interval are over 10 times apart. More repeats make it narrower.",
    ]


def comparison(metric: str, statistic: str, spread: float | None = 0.05, **given: object) -> Comparison:
    needed = {"5 %": 47, "10 %": None, "20 %": 4} if spread else {"5 %": None, "10 %": None, "20 %": None}
    return Comparison(
        a="roseinfer", b="vLLM", load=TraceLoad(scale=0.5),
        metric=metric, statistic=statistic, value_a=1, value_b=2,
        ratio=0.5, spread=spread, repeats_to_find=needed, **given,
    )  # fmt: skip


def test_one_row_for_a_pair_and_scale_with_what_is_known():
    [table] = planning_tables(
        [comparison("tpot_ms", "p50"), comparison("itl_ms", "p50"), comparison("ttft_ms", "p99")]
    )
    assert table.headers[:2] == ["engines", "scale"] and table.headers[2:] == ["TTFT p99", "TPOT p50"]
    assert table.lines == [["roseinfer and vLLM", "0.5", "47 / over 1,000 / 4", "47 / over 1,000 / 4"]]


def test_without_repeats_there_is_no_plan():
    assert planning_tables([comparison("tpot_ms", "p50", spread=None)]) == []


@pytest.mark.parametrize(("spread", "columns"), [(0.05, 9), (None, 6)])
def test_noise_has_a_plan_where_the_spread_is_known(spread: float | None, columns: int):
    pair = comparison("tpot_ms", "p50", spread)
    launches = [LaunchRecord(engine="x", label=label, side_of="x") for label in (pair.a, pair.b)]
    [table] = noise_tables([pair], launches)
    assert noise_tables([pair], launches[:1]) == []
    assert len(table.headers) == len(table.rows[0]) == columns
