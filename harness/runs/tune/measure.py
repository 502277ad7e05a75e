"""Measures the configurations of a tuning: in rounds while they are many, then the finalists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from harness.engines.base import EngineVariant
from harness.errors import BenchError
from harness.runs.balanced_orders import balanced_orders
from harness.runs.block import measure_block
from harness.runs.events import ConfigurationDropped, Notify
from harness.runs.folder import JOURNAL
from harness.runs.journal import read_journal
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.runs.schedule import Block, Cell
from harness.runs.seeds import prompt_seed
from harness.runs.tune.tuning import Tuning, tuning_of
from harness.schema.results import OnlineSummary

#: Sets the seeds of a tuning apart from those of other runs.
_TUNING = 3


def measure_tuning(
    run: Run, resolved: Resolved, summaries: Sequence[OnlineSummary], notify: Notify
) -> Tuning:
    """Measure every configuration once and the better ones again, then the finalists and the default.

    Each cell has a fresh server. The configurations of a round are measured in a balanced order and get the
    same prompts. One that fails is out; the others go on.

    Args:
        summaries: Of each cell that was measured before, in the order of measurement.

    Raises:
        BenchError: The default cannot be measured.
    """
    plan = run.info.tune
    assert plan is not None
    rounds = _Rounds(run, resolved, notify)
    tuning = tuning_of(plan, summaries)
    labels = [configuration.label for configuration in plan.configurations]
    orders = balanced_orders(len(labels), plan.rounds, run.settings.seed)
    for repeat, order in enumerate(orders):
        if tuning.decided:
            break
        for label in (labels[place] for place in order):
            if not (tuning.goes_on(label) and tuning.lacks(label, repeat)):
                continue
            summary = rounds.measure(label, repeat)
            if summary is None:
                tuning.fail(label, _reason(run, label))
            elif not tuning.take(summary):
                notify(ConfigurationDropped(label, repeat + 1))
            if summary is None and label == tuning.default:
                raise BenchError(f"the default cannot be measured: {_reason(run, label)}")
    compared = [tuning.default, *tuning.finalists]
    for repeat, order in enumerate(balanced_orders(len(compared), run.settings.repeats, run.settings.seed)):
        for place in order:
            rounds.measure(compared[place], plan.rounds + repeat)
    return tuning


class _Rounds:
    """Measures one cell after the other."""

    def __init__(self, run: Run, resolved: Resolved, notify: Notify) -> None:
        self._run, self._resolved, self._notify = run, resolved, notify
        self._variants = {variant.label: variant for variant in resolved.engine_variants}
        entries = read_journal(run.folder / JOURNAL)
        self._done = {(entry.label, entry.repeat) for entry in entries}
        self._indices: Iterator[int] = count(1 + max((entry.cell for entry in entries), default=-1))

    def measure(self, label: str, repeat: int) -> OnlineSummary | None:
        """One repeat of one configuration; None where it was measured before, or fails."""
        if (label, repeat) in self._done:
            return None
        kept: list[OnlineSummary] = []

        def keep(cell: Cell, summary: OnlineSummary) -> None:
            kept.append(summary)

        cell = self._cell(self._variants[label], repeat)
        measure_block(self._run, self._resolved, Block(cell.engine_variant, (cell,)), self._notify, keep)
        return kept[0] if kept else None

    def _cell(self, engine_variant: EngineVariant, repeat: int) -> Cell:
        settings = self._run.settings
        shape = np.random.SeedSequence([settings.seed, repeat], spawn_key=(_TUNING,))
        return Cell(
            next(self._indices),
            engine_variant,
            settings.loads[0],
            repeat,
            load_seed=prompt_seed([settings.seed, _TUNING, repeat]),
            shape_seed=int(shape.generate_state(1, np.uint64)[0]),
        )


def _reason(run: Run, label: str) -> str:
    """Why a configuration failed last."""
    return next((fault.said for fault in reversed(run.skipped) if fault.label == label), "it failed")
