"""Plans: which cells of a run are measured next, by what is measured already."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from harness.metrics.samples import Group
from harness.runs.journal import JournalEntry
from harness.runs.schedule import Block, Cell
from harness.schema.results import OnlineResults, Skipped


@dataclass(frozen=True)
class Done:
    """State of a run: cells in the journal, in their order, and cells that failed since it was begun or
    resumed, which are not tried again before it is resumed."""

    entries: Sequence[JournalEntry]
    failed: Sequence[Skipped] = ()

    @property
    def next_index(self) -> int:
        """Number of the first cell that no plan has used."""
        return 1 + max((entry.cell for entry in self.entries), default=-1)


class Plan(ABC):
    """Decides what a run measures."""

    #: Whether the number of cells is an estimate.
    is_estimate = False

    @abstractmethod
    def next(self, done: Done) -> list[Cell] | None:
        """Return cells that can be measured now; None when nothing is left to measure.

        Cells with the same `server` are answered by one start of an engine's server, and cells of different
        `side` may be measured at the same time.
        """

    @abstractmethod
    def expected(self, done: Done) -> int:
        """Return how many cells the run has in the end, as far as that is known."""

    def next_of_server(self, cell: Cell, done: Done) -> Cell | None:
        """Return what the server that answered `cell` measures next beyond `next`; None: it is ended."""
        return None

    def result(self, done: Done, results: OnlineResults, groups: Sequence[Group]) -> OnlineResults:
        """Return the results with what the plan was to find out.

        Args:
            done: Its entries have the summaries of `results`.
            groups: The raw tables of the cells that are compared.
        """
        return results


class Grid(Plan):
    """Every engine at every load in every repeat, in an order that is fixed in advance; also a batch."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._cells = [cell for block in blocks for cell in block.cells]

    def next(self, done: Done) -> list[Cell] | None:
        measured = {entry.cell for entry in done.entries}
        failed = {(fault.label, fault.load, fault.repeat) for fault in done.failed}
        return [
            cell
            for cell in self._cells
            if cell.index not in measured
            and (cell.engine_variant.label, cell.load, cell.repeat) not in failed
        ] or None

    def expected(self, done: Done) -> int:
        return len(self._cells)
