"""The table of speculative decoding: what was accepted, beside what it did to the time between tokens."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.digits import per_cent
from harness.report.tables.table import Cell, Column, Table, repeat_cell
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, number
from harness.schema.online_summary import OnlineSummary
from harness.schema.speculation import Speculation

_NOTE = (
    "By the engine's counters over the cell. Tokens a step: the accepted ones and the one that the model "
    "adds. By position: share of steps in which the first, the second, … drafted token was accepted."
)


def speculation_table(found: Sequence[Speculation], summaries: Sequence[OnlineSummary]) -> Table | None:
    """One row a cell that drafted tokens; None where none did.

    Args:
        summaries: Of each repeat, for ITL and TPOT.
    """
    if not found:
        return None
    at = {(s.label, s.load, s.repeat): s for s in summaries}
    numbers = (head_of(cell.load for cell in found), "repeat", "accepted", "tokens a step")
    columns = [
        Column("engine", numeric=False),
        *map(Column, numbers),
        Column("by position", numeric=False),
        Column("ITL p50 ms"),
        Column("TPOT p50 ms"),
        Column("source", numeric=False),
    ]
    rows = [_row(cell, at.get((cell.label, cell.load, cell.repeat))) for cell in found]
    return Table("speculation", "Speculative decoding", columns, rows, (_NOTE,))


def _row(cell: Speculation, summary: OnlineSummary | None) -> list[Cell]:
    count = cell.count
    itl = summary.itl_ms.p50 if summary else None
    tpot = summary.tpot_ms.p50 if summary else None
    return [
        Cell(cell.label),
        Cell(load_number(cell.load), cell.load.value),
        repeat_cell(cell.repeat),
        Cell(DASH if count.accepted is None else per_cent(count.accepted, 1), count.accepted),
        Cell(f"{count.tokens_per_step:.2f}", count.tokens_per_step),
        Cell(" / ".join(per_cent(share) for share in count.by_position) or DASH),
        Cell(number(itl, 2), itl),
        Cell(number(tpot, 2), tpot),
        Cell(count.source),
    ]
