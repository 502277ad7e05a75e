"""The advice how many repeats are needed."""

from __future__ import annotations

import pytest

from harness.report.tables.comparisons import noise_tables, planning_tables
from harness.schema.load import TraceLoad
from harness.schema.results import Comparison
from harness.schema.run_info import LaunchRecord


def comparison(metric: str, statistic: str, spread: float | None = 0.05, **given: object) -> Comparison:
    needed = {"5 %": 47, "10 %": None} if spread else {"5 %": None, "10 %": None}
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
    assert table.lines == [["roseinfer and vLLM", "0.5", "47 / over 1,000", "47 / over 1,000"]]


def test_without_repeats_there_is_no_plan():
    assert planning_tables([comparison("tpot_ms", "p50", spread=None)]) == []


@pytest.mark.parametrize(("spread", "columns"), [(0.05, 8), (None, 6)])
def test_noise_has_a_plan_where_the_spread_is_known(spread: float | None, columns: int):
    pair = comparison("tpot_ms", "p50", spread)
    launches = [LaunchRecord(engine="x", label=label, side_of="x") for label in (pair.a, pair.b)]
    [table] = noise_tables([pair], launches)
    assert noise_tables([pair], launches[:1]) == []
    assert len(table.headers) == len(table.rows[0]) == columns
