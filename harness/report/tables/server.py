"""What servers say of themselves, one row an engine and load."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from harness.metrics.digits import per_cent
from harness.metrics.samples import Group, by_load
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH

_NOTES = (
    "By the servers' own metrics, read while they were measured: means and the most over the readings. "
    "A dash: the server does not report it. Reading: how long an answer took at the median.",
)


def server_table(groups: Sequence[Group], readings: pd.DataFrame) -> Table | None:
    """Of all repeats; None where no server said anything."""
    if readings.empty:
        return None
    heads = (
        "running",
        "most",
        "waiting",
        "most",
        "KV cache, most",
        "preemptions",
        "prefix hits",
        "tokens a step",
    )
    columns = [
        Column("engine", numeric=False),
        Column(head_of(group.load for group in groups)),
        *map(Column, heads),
        Column("readings"),
        Column("reading, ms"),
    ]
    rows = []
    for repeats in by_load(groups):
        cells = {int(cell) for group in repeats for cell in group.requests["cell"].unique()}
        found = readings[readings["cell"].isin(cells)]
        if len(found):
            group = repeats[0]
            rows.append([Cell(group.label), Cell(load_number(group.load), group.load.value), *_cells(found)])
    return Table("server", "What the servers say of themselves", columns, rows, _NOTES)


def _cells(found: pd.DataFrame) -> list[Cell]:
    ends = found.groupby("cell").max()[
        ["preemptions", "prefix_hits", "prefix_queries", "steps", "step_tokens"]
    ]
    sums = ends.sum(min_count=1)
    rate = sums["prefix_hits"] / sums["prefix_queries"] if sums["prefix_queries"] > 0 else None
    if rate is None:
        rate = found.groupby("cell")["prefix_hit_rate"].last().mean()
    return [
        _number(found["running"].mean(), 1),
        _number(found["running"].max(), 0),
        _number(found["waiting"].mean(), 1),
        _number(found["waiting"].max(), 0),
        _share(found["kv_usage"].max()),
        _number(sums["preemptions"], 0),
        _share(rate),
        _number(sums["step_tokens"] / sums["steps"] if sums["steps"] > 0 else None, 1),
        Cell(f"{len(found):,}", len(found)),
        _number(found["took_ms"].median(), 1),
    ]


def _number(value: float | None, places: int) -> Cell:
    return Cell(DASH) if value is None or pd.isna(value) else Cell(f"{value:,.{places}f}", float(value))


def _share(value: float | None) -> Cell:
    return Cell(DASH) if value is None or pd.isna(value) else Cell(per_cent(value, 1), float(value))
