"""The table of prefix hit rates."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.digits import per_cent
from harness.report.tables.table import Cell, Column, Table, repeat_cell
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH
from harness.schema.results import PREFIX_BLOCK_TOKENS, PrefixHits


def prefix_table(hits: Sequence[PrefixHits]) -> Table | None:
    """One row a cell; None where prompts shared nothing and no engine says otherwise."""
    if not any(cell.possible or cell.reported for cell in hits):
        return None
    notes = (
        f"Share of prompt tokens. Possible: an unbounded cache of blocks of {PREFIX_BLOCK_TOKENS} tokens "
        "would have held them, in the order in which requests were sent. Reported: by the engine.",
    )
    numbers = (head_of(cell.load for cell in hits), "repeat", "possible", "reported")
    columns = [Column("engine", numeric=False), *map(Column, numbers), Column("source", numeric=False)]
    return Table("prefixes", "Prefix hit rate", columns, [_row(cell) for cell in hits], notes)


def _row(hits: PrefixHits) -> list[Cell]:
    possible = per_cent(hits.possible, 1) if hits.prompt_tokens else DASH
    reported = DASH if hits.reported is None else per_cent(hits.reported, 1)
    return [
        Cell(hits.label),
        Cell(load_number(hits.load), hits.load.value),
        repeat_cell(hits.repeat),
        Cell(possible, hits.possible if hits.prompt_tokens else None),
        Cell(reported, hits.reported),
        Cell(hits.source),
    ]
