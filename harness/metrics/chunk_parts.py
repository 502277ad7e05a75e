"""A table of chunks, all at once or in parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

import pandas as pd


class ChunkParts(Protocol):
    """A table that is too long to be held: rows of `records.columns.CHUNKS`, ascending by cell, request and
    time."""

    def parts(self, cells: Collection[int] | None = None) -> Iterator[pd.DataFrame]:
        """All rows of these cells, or of all, some at a time, from the first on."""


Chunks = pd.DataFrame | ChunkParts


@dataclass(frozen=True)
class _SomeCells:
    chunks: ChunkParts
    cells: Collection[int]

    def parts(self, cells: Collection[int] | None = None) -> Iterator[pd.DataFrame]:
        wanted = self.cells if cells is None else {*self.cells} & {*cells}
        return self.chunks.parts(wanted)


def parts_of(chunks: Chunks) -> Iterator[pd.DataFrame]:
    """A table that is held is one part."""
    if isinstance(chunks, pd.DataFrame):
        yield chunks
    else:
        yield from chunks.parts()


def of_cells(chunks: Chunks, cells: Collection[int]) -> Chunks:
    """The rows of these cells."""
    if isinstance(chunks, pd.DataFrame):
        return chunks[chunks["cell"].isin(cells)]
    return _SomeCells(chunks, cells)
