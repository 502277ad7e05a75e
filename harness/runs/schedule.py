"""Cells and their order, and plans: which cells come next, by what is measured already."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import TypeVar

import numpy as np

from harness.engines.base import EngineVariant
from harness.errors import BenchError
from harness.metrics.contrast import Contrast
from harness.metrics.power import decided, of_cells
from harness.metrics.samples import Group
from harness.records.cell import CellIdentity
from harness.runs.journal import JournalEntry
from harness.schema.base import repeat_text
from harness.schema.load import Load
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults, Skipped
from harness.schema.setting_types import RUNNING_SERVER
from harness.schema.settings import CommonSettings
from harness.traces.sampling import prompt_seed, shape_seeds

T = TypeVar("T")

#: Repeats whose spread says how many repeats find a difference.
PILOT_REPEATS = 2


@dataclass(frozen=True)
class Cell:
    """One measurement: an engine at a load.

    `index` is its number in the run. `load_seed` is that of its prompts, which come in no other load or
    repeat. Every engine that is started here gets the same ones; a running server, whose cache may outlive
    the run, gets its own in each run. `shape_seed` is that of its times, lengths and order, which are the
    same for every engine. `start` is which start of the engine's server measures it, in a search. `side` is
    which of the run's sets of machines measures it, where there are several.
    """

    index: int
    engine_variant: EngineVariant
    load: Load
    repeat: int
    load_seed: int
    shape_seed: int
    start: int | None = None
    side: int = 0

    @property
    def server(self) -> tuple[str, int, int | None]:
        """Name the start of a server that answers it: label, repeat and, of a search, the start alone."""
        repeat = self.repeat if self.start is None else 0
        return self.engine_variant.label, repeat, self.start

    @property
    def identity(self) -> CellIdentity:
        """Names of the cell in its records."""
        ref, label = self.engine_variant.ref, self.engine_variant.label
        return CellIdentity(self.index, ref.name, ref.variant, label, self.load, self.repeat)

    def skipped(self, error: BenchError) -> Skipped:
        """State that the cell was not measured, and why."""
        fault = self.engine_variant.skipped(error.message, error.hint, load=self.load, repeat=self.repeat)
        return fault.model_copy(update={"new_run": error.new_run})

    def __str__(self) -> str:
        return f"{self.engine_variant.label}, {self.load}, {repeat_text(self.repeat)}"


@dataclass(frozen=True)
class Block:
    """Cells that one server answers, in this order: an engine's loads within one repeat."""

    engine_variant: EngineVariant
    cells: tuple[Cell, ...]


def grid_blocks(
    settings: OnlineSettings, engine_variants: list[EngineVariant], sides: int = 1
) -> list[Block]:
    """Return all blocks of a run, in the order in which they are measured.

    Engines go in the order of `turns`, an engine's loads from light to heavy. All engines of a repeat are on
    one side, so that a difference between machines is none between engines.
    """
    index = count()
    seeds = {v.label: engine_seed(settings, v, engine_variants) for v in engine_variants}
    return [
        Block(
            engine_variant,
            tuple(
                Cell(
                    next(index),
                    engine_variant,
                    load,
                    repeat,
                    prompt_seed([*seeds[engine_variant.label], repeat, position]),
                    shape_seed,
                    side=repeat % sides,
                )
                for position, (load, shape_seed) in enumerate(
                    zip(settings.loads, shape_seeds(settings.seed, repeat, len(settings.loads)), strict=True)
                )
            ),
        )
        for engine_variant, repeat in turns(engine_variants, settings)
    ]


def engine_seed(
    settings: OnlineSettings, engine_variant: EngineVariant, every: Sequence[EngineVariant]
) -> list[int]:
    """Return the beginning of the seeds of an engine's prompts."""
    nonce = settings.prompt_nonce
    if nonce is None or engine_variant.ref.name != RUNNING_SERVER:
        return [settings.seed]
    servers = [other.label for other in every if other.ref.name == RUNNING_SERVER]
    return [settings.seed, nonce, servers.index(engine_variant.label)]


def turns(engines: Sequence[T], settings: CommonSettings) -> list[tuple[T, int]]:
    """Engines and repeats, in the order in which they are measured.

    With `interleave`, each repeat measures every engine before the next repeat begins, in balanced orders
    drawn from the seed; without, the engines go in the order given, the repeats of each one after the other.
    """
    if not settings.interleave:
        return [(engine, repeat) for engine in engines for repeat in range(settings.repeats)]
    orders = balanced_orders(len(engines), settings.repeats, settings.seed)
    return [(engines[i], repeat) for repeat, order in enumerate(orders) for i in order]


def blocks_of(cells: Iterable[Cell]) -> list[Block]:
    """Group cells by the server that answers them, in the order of the first of each."""
    groups: dict[tuple[str, int, int | None], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.server, []).append(cell)
    return [Block(group[0].engine_variant, tuple(group)) for group in groups.values()]


def measured_cells(engine_variants: Sequence[EngineVariant], entries: Iterable[JournalEntry]) -> list[Cell]:
    """Return the cells of a journal, which alone knows those of a search. Their seeds are not needed."""
    variants = {variant.label: variant for variant in engine_variants}
    return [
        Cell(entry.cell, variants[entry.label], entry.load, entry.repeat, 0, 0, entry.start)
        for entry in entries
        if entry.label in variants
    ]


def balanced_orders(engines: int, repeats: int, seed: int) -> list[list[int]]:
    """For each repeat the engines in the order in which they are measured.

    The rows of Williams designs (E. J. Williams, Australian Journal of Scientific Research A 2, 1949): over a
    whole design each engine is at each place equally often, and after each other engine equally often. It
    has as many rows as engines, twice as many where their number is odd; engines and rows are drawn from the
    seed, anew for each design. A row is followed by its reverse, so after every second repeat each engine has
    been before and after each other one equally often, and a steady drift of the machine meets all alike.

    Returns:
        `repeats` permutations of range(engines).
    """
    rng = np.random.default_rng(seed)
    zigzag = np.array([(place + 1) // 2 * (1 if place % 2 else -1) for place in range(engines)])
    orders: list[list[int]] = []
    while len(orders) < repeats:
        names = rng.permutation(engines)
        # With an even number the reverse of a row is another row of the same square.
        for shift in rng.permutation(engines if engines % 2 else engines // 2):
            row = names[(zigzag + shift) % engines].tolist()
            pair = [row, row[::-1]]
            orders += pair if rng.integers(2) else pair[::-1]
    return orders[:repeats]


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

    def power(self, done: Done) -> list[Contrast]:
        """Return comparisons of which it is to be said now how many repeats they need, or none."""
        return []

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
    """Every engine at every load in every repeat, in an order that is fixed in advance; also a batch.

    With `--until` it ends when a difference would be found, or its time is over. It looks after a few numbers
    of repeats alone, as each look takes a part of the level.
    """

    def __init__(self, blocks: Sequence[Block], settings: OnlineSettings | None = None) -> None:
        self._cells = [cell for block in blocks for cell in block.cells]
        self._until = None if settings is None else settings.until
        self._looks = [] if settings is None else settings.looks
        #: Numbers of repeats that are measured before anything is decided, or said.
        self._stops = self._looks if self._until else []
        if settings is not None and settings.interleave and settings.side_by_side == 1:
            self._stops = sorted({*self._stops, PILOT_REPEATS})
        seconds = None if settings is None else settings.until_seconds
        self._end = math.inf if seconds is None else monotonic() + seconds
        self.is_estimate = self._until is not None

    def next(self, done: Done) -> list[Cell] | None:
        left = self._left(done)
        complete = min((cell.repeat for cell in left), default=0)
        if not left or (complete and self._is_enough(complete, done)):
            return None
        if self._end < math.inf:
            return [cell for cell in left if cell.repeat == complete]
        stop = next((stop for stop in self._stops if stop > complete), math.inf)
        return [cell for cell in left if cell.repeat < stop]

    def power(self, done: Done) -> list[Contrast]:
        planned = 1 + max((cell.repeat for cell in self._cells), default=0)
        complete = min((cell.repeat for cell in self._left(done)), default=planned)
        return self._contrasts(done) if PILOT_REPEATS in self._stops and complete == PILOT_REPEATS else []

    def expected(self, done: Done) -> int:
        return len(self._cells) if self.next(done) is not None else len(done.entries)

    def _left(self, done: Done) -> list[Cell]:
        measured = {entry.cell for entry in done.entries}
        failed = {(fault.label, fault.load, fault.repeat) for fault in done.failed}
        return [
            cell
            for cell in self._cells
            if cell.index not in measured
            and (cell.engine_variant.label, cell.load, cell.repeat) not in failed
        ]

    def _is_enough(self, repeats: int, done: Done) -> bool:
        """Tell whether `--until` ends after so many repeats."""
        if self._until is None:
            return False
        if monotonic() > self._end:
            return True
        return repeats in self._looks and decided(self._contrasts(done), self._until)

    def _contrasts(self, done: Done) -> list[Contrast]:
        return of_cells((entry.figures for entry in done.entries), len(self._looks))
