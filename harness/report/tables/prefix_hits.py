"""The table of prefix hit rates."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH
from harness.schema.results import PREFIX_BLOCK_TOKENS, PrefixHits


def prefix_table(hits: Sequence[PrefixHits]) -> Table | None:
    """One row a cell; None where prompts shared nothing and no engine says otherwise."""
    if not any(one.possible or one.reported for one in hits):
        return None
    notes = (
        f"Share of prompt tokens. Possible: an unbounded cache of blocks of {PREFIX_BLOCK_TOKENS} tokens "
        "would have held them, in the order in which requests were sent. Reported: by the engine.",
    )
    numbers = (head_of(one.load for one in hits), "repeat", "possible", "reported")
    columns = [Column("engine", numeric=False), *map(Column, numbers), Column("source", numeric=False)]
    return Table("prefixes", "Prefix hit rate", columns, [_row(one) for one in hits], notes)


def _row(one: PrefixHits) -> list[Cell]:
    reported = DASH if one.reported is None else f"{one.reported:.1%}"
    return [
        Cell(one.label),
        Cell(load_number(one.load), one.load.value),
        Cell(str(one.repeat), one.repeat),
        Cell(f"{one.possible:.1%}", one.possible),
        Cell(reported, one.reported),
        Cell(one.source),
    ]
