"""Where the time to first token went, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import decimals, number
from harness.schema.fairness import PARTS, Waterfall
from harness.schema.online_summary import OnlineSummary


def with_waterfall(pooled: Sequence[OnlineSummary]) -> list[tuple[OnlineSummary, Waterfall]]:
    """The summaries whose TTFT is taken apart."""
    return [(summary, summary.waterfall) for summary in pooled if summary.waterfall is not None]


def waterfall_table(pooled: Sequence[OnlineSummary]) -> Table | None:
    """One row an engine and load, a column a part; None where no TTFT is taken apart."""
    rows = with_waterfall(pooled)
    if not rows:
        return None
    head = head_of(summary.load for summary, _ in rows)
    columns = [Column("engine", numeric=False), Column(head), *(Column(part) for part in PARTS)]
    lines = []
    for summary, found in rows:
        parts = {part.part: part for part in found.parts}
        digits = decimals([found.total_ms])
        cells = [
            Cell(number(p.mean_ms, digits), p.mean_ms, remark=f"{p.source}: {p.how}")
            if (p := parts.get(name)) is not None
            else Cell("–")
            for name in PARTS
        ]
        total = Cell(number(found.total_ms, digits), found.total_ms)
        lines.append(
            [Cell(summary.label), Cell(load_number(summary.load), summary.load.value), *cells, total]
        )
    notes = [f"{part}: {meaning}." for part, meaning in PARTS.items()]
    return Table("waterfall", "Parts of the mean TTFT, ms", [*columns, Column("sum")], lines, notes)
