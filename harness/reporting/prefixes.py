"""The table of prefix hit rates."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.numbers import DASH
from harness.reporting.table import Cell, Column, Table
from harness.spec.results import PREFIX_BLOCK_TOKENS, PrefixHits

_COLUMNS = [
    Column("engine", numeric=False),
    Column("scale"),
    Column("repeat"),
    Column("possible"),
    Column("reported"),
    Column("source", numeric=False),
]


def prefix_table(hits: Sequence[PrefixHits]) -> Table | None:
    """One row a cell; None where prompts shared nothing and no engine says otherwise."""
    if not any(one.possible or one.reported for one in hits):
        return None
    notes = (
        f"Share of prompt tokens. Possible: an unbounded cache of blocks of {PREFIX_BLOCK_TOKENS} tokens "
        "would have held them, in the order in which requests were sent. Reported: by the engine.",
    )
    return Table("prefixes", "Prefix hit rate", _COLUMNS, [_row(one) for one in hits], notes)


def _row(one: PrefixHits) -> list[Cell]:
    reported = DASH if one.reported is None else f"{one.reported:.1%}"
    return [
        Cell(one.label),
        Cell(f"{one.scale:g}", one.scale),
        Cell(str(one.repeat), one.repeat),
        Cell(f"{one.possible:.1%}", one.possible),
        Cell(reported, one.reported),
        Cell(one.source),
    ]
