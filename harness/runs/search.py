"""`bench search`: measures cell by cell, each load chosen by what the cells before have shown.

Engines take turns in balanced orders: a block of each, in which one start of its server answers a few cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from math import inf
from time import monotonic

import numpy as np

from harness.engines.base import EngineVariant
from harness.runs.balanced_orders import balanced_orders
from harness.runs.block import measure_block
from harness.runs.events import Notify
from harness.runs.folder import JOURNAL
from harness.runs.journal import read_journal
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.runs.schedule import Block, Cell, engine_seed
from harness.runs.search_state import EngineSearch, searches_of
from harness.schema.online_summary import OnlineSummary
from harness.traces.sampling import prompt_seed

#: Sets the seeds of a search apart from those of other runs.
_SEARCH = 2


class _Deadline:
    """When a search is to have ended, and how long each engine took from its start to its first cell."""

    def __init__(self, seconds: float | None) -> None:
        self._end = monotonic() + (inf if seconds is None else seconds)
        self._to_first_cell: dict[str, float] = {}

    def allows_start(self, label: str) -> bool:
        """Whether a cell of a new start would end in time. An engine's first start always begins."""
        return label not in self._to_first_cell or self.allows(self._to_first_cell[label])

    def allows(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return monotonic() + seconds <= self._end

    def first_cell(self, label: str, begun: float) -> None:
        """The first cell of the start that begun then has ended."""
        self._to_first_cell[label] = monotonic() - begun


def search_loads(run: Run, resolved: Resolved, summaries: Sequence[OnlineSummary], notify: Notify) -> None:
    """Measure until each engine's capacity is known, or the cells or the time are spent. A server that fails
    ends the search of its engine.

    Args:
        summaries: Of each cell that was measured before.
    """
    assert run.info.search is not None
    engines = {engine_variant.label: engine_variant for engine_variant in resolved.engine_variants}
    entries = read_journal(run.folder / JOURNAL)
    searches = searches_of(run.info.search, list(engines), entries, summaries)
    indices = count(1 + max((entry.cell for entry in entries), default=-1))
    deadline = _Deadline(run.info.search.max_seconds)
    going = list(engines)
    turn = 0
    while going := [label for label in going if not searches[label].ended]:
        order = balanced_orders(len(engines), turn + 1, run.settings.seed)[turn]
        for label in (list(engines)[position] for position in order):
            if label in going and not (
                deadline.allows_start(label)
                and _measure_start(run, resolved, searches[label], engines[label], indices, deadline, notify)
            ):
                going.remove(label)
        turn += 1


def search_is_over(run: Run, summaries: Sequence[OnlineSummary]) -> bool:
    """Whether every engine's search has ended by itself, so that nothing is left to measure.

    Args:
        summaries: Of each cell that was measured.
    """
    assert run.info.search is not None
    labels = [engine_variant.label for engine_variant in run.engine_variants]
    entries = read_journal(run.folder / JOURNAL)
    searches = searches_of(run.info.search, labels, entries, summaries)
    return all(search.ended for search in searches.values())


def _measure_start(
    run: Run,
    resolved: Resolved,
    search: EngineSearch,
    engine_variant: EngineVariant,
    indices: Iterator[int],
    deadline: _Deadline,
    notify: Notify,
) -> bool:
    """Measure the cells of one start of an engine's server. Returns whether none failed."""
    start = 1 + max((trial.start for trial in search.trials), default=-1)
    asked, measured_before = 0, len(search.trials)
    begun, label = monotonic(), engine_variant.label
    seed = engine_seed(run.settings_now, engine_variant, resolved.engine_variants)

    def cell() -> Cell:
        nonlocal asked
        asked += 1
        load = search.plan.load(search.next_value, run.settings.loads[0])
        number = len(search.trials)
        shape = np.random.SeedSequence([run.settings.seed, number], spawn_key=(_SEARCH,))
        return Cell(
            next(indices),
            engine_variant,
            load,
            repeat=sum(trial.load == load for trial in search.trials),
            load_seed=prompt_seed([*seed, _SEARCH, start, number]),
            shape_seed=int(shape.generate_state(1, np.uint64)[0]),
            start=start,
        )

    def following(measured: Cell, summary: OnlineSummary) -> Cell | None:
        search.take(summary, start)
        here = sum(trial.start == start for trial in search.trials)
        if here == 1:
            deadline.first_cell(label, begun)
        enough = search.ended or here >= search.plan.cells_per_start
        seconds = (run.settings.settle or 0.0) + summary.duration_s
        return None if enough or not deadline.allows(seconds) else cell()

    measure_block(run, resolved, Block(engine_variant, (cell(),)), notify, following)
    return len(search.trials) - measured_before == asked
