"""`bench search`: measures cell by cell, each load chosen by what the cells before have shown.

Engines take turns in balanced orders: a block of each, in which one start of its server answers a few cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

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
from harness.runs.seeds import prompt_seed
from harness.schema.results import OnlineSummary

#: Sets the seeds of a search apart from those of other runs.
_SEARCH = 2


def search_loads(run: Run, resolved: Resolved, summaries: Sequence[OnlineSummary], notify: Notify) -> None:
    """Measure until each engine's capacity is known, or its cells are spent. A server that fails ends the
    search of its engine.

    Args:
        summaries: Of each cell that was measured before.
    """
    assert run.info.search is not None
    engines = {engine_variant.label: engine_variant for engine_variant in resolved.engine_variants}
    entries = read_journal(run.folder / JOURNAL)
    searches = searches_of(run.info.search, list(engines), entries, summaries)
    indices = count(1 + max((entry.cell for entry in entries), default=-1))
    going = list(engines)
    turn = 0
    while going := [label for label in going if not searches[label].ended]:
        order = balanced_orders(len(engines), turn + 1, run.settings.seed)[turn]
        for label in (list(engines)[position] for position in order):
            if label in going and not _measure_start(
                run, resolved, searches[label], engines[label], indices, notify
            ):
                going.remove(label)
        turn += 1


def _measure_start(
    run: Run,
    resolved: Resolved,
    search: EngineSearch,
    engine_variant: EngineVariant,
    indices: Iterator[int],
    notify: Notify,
) -> bool:
    """Measure the cells of one start of an engine's server. Returns whether none failed."""
    start = 1 + max((trial.start for trial in search.trials), default=-1)
    asked, measured_before = 0, len(search.trials)
    seed = engine_seed(run.settings, engine_variant, resolved.engine_variants)

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
        return None if search.ended or here >= search.plan.cells_per_start else cell()

    measure_block(run, resolved, Block(engine_variant, (cell(),)), notify, following)
    return len(search.trials) - measured_before == asked
