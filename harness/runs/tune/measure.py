"""Measures the configurations of a tuning: in rounds while they are many, then the finalists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.engines.base import EngineVariant
from harness.errors import BenchError
from harness.runs.balanced_orders import balanced_orders
from harness.runs.events import CellsExpected, ConfigurationDropped, Notify
from harness.runs.folder import JOURNAL
from harness.runs.journal import read_journal
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.runs.schedule import Block, Cell
from harness.runs.side_by_side import measure_blocks
from harness.runs.tune.tuning import Tuning, tuning_of
from harness.schema.online_summary import OnlineSummary
from harness.traces.sampling import prompt_seed

#: Sets the seeds of a tuning apart from those of other runs.
_TUNING = 3


def measure_tuning(
    run: Run, resolved: Resolved, summaries: Sequence[OnlineSummary], notify: Notify
) -> Tuning:
    """Measure every configuration once and the better ones again, then the finalists and the default.

    Each cell has a fresh server. The configurations of a round are measured in a balanced order, by turns on
    the sets of machines that there are, and get the same prompts. One that fails is out; the others go on.
    A repeat of all finalists and the default stays on one set.

    Args:
        summaries: Of each cell that was measured before, in the order of measurement.

    Raises:
        BenchError: The default cannot be measured.
    """
    plan = run.info.tune
    assert plan is not None
    rounds, sets = _Rounds(run, resolved, notify), len(resolved.machines.testbeds)
    tuning = tuning_of(plan, summaries)
    labels = [configuration.label for configuration in plan.configurations]
    orders = balanced_orders(len(labels), plan.rounds, run.settings.seed)
    for repeat, order in enumerate(orders):
        if tuning.decided:
            break
        ordered = [labels[place] for place in order]
        left = [label for label in ordered if tuning.goes_on(label) and tuning.lacks(label, repeat)]
        compared = (1 + min(plan.finalists, len(labels) - 1)) * run.settings.repeats
        notify(CellsExpected(rounds.begun + len(left) + tuning.later(repeat) + compared))
        for first in range(0, len(left), sets):
            together = left[first : first + sets]
            measured = rounds.measure([[(label, repeat)] for label in together])
            for (label, _), summary in measured.items():
                if not tuning.take(summary):
                    notify(ConfigurationDropped(label, repeat + 1))
            for label in together:
                if (label, repeat) not in measured:
                    tuning.fail(label, _reason(run, label))
                    if label == tuning.default:
                        raise BenchError(f"the default cannot be measured: {_reason(run, label)}")
    last = [tuning.default, *tuning.finalists]
    turns: list[list[tuple[str, int]]] = [[] for _ in range(sets)]
    for repeat, order in enumerate(balanced_orders(len(last), run.settings.repeats, run.settings.seed)):
        turns[repeat % sets] += [(last[place], plan.rounds + repeat) for place in order]
    notify(CellsExpected(rounds.begun + rounds.lacking(turns)))
    rounds.measure(turns)
    return tuning


def tuning_is_over(run: Run, summaries: Sequence[OnlineSummary]) -> bool:
    """Whether the finalists were found and compared, so that nothing is left to measure.

    Args:
        summaries: Of each cell that was measured, in the order of measurement.
    """
    plan = run.info.tune
    assert plan is not None
    tuning = tuning_of(plan, summaries)
    labels = [configuration.label for configuration in plan.configurations]
    if not tuning.decided and any(
        tuning.goes_on(label) and tuning.lacks(label, plan.rounds - 1) for label in labels
    ):
        return False
    done = {(entry.label, entry.repeat) for entry in read_journal(run.folder / JOURNAL)}
    last, repeats = [tuning.default, *tuning.finalists], range(run.settings.repeats)
    return all((label, plan.rounds + repeat) in done for label in last for repeat in repeats)


class _Rounds:
    """Measures cells that are not in the journal."""

    def __init__(self, run: Run, resolved: Resolved, notify: Notify) -> None:
        self._run, self._resolved, self._notify = run, resolved, notify
        self._variants = {variant.label: variant for variant in resolved.engine_variants}
        entries = read_journal(run.folder / JOURNAL)
        self._done = {(entry.label, entry.repeat) for entry in entries}
        #: How many cells have a number.
        self.begun = 1 + max((entry.cell for entry in entries), default=-1)

    def lacking(self, turns: Sequence[Sequence[tuple[str, int]]]) -> int:
        """How many of them are not in the journal."""
        return sum(turn not in self._done for own in turns for turn in own)

    def measure(self, turns: Sequence[Sequence[tuple[str, int]]]) -> Mapping[tuple[str, int], OnlineSummary]:
        """Labels and repeats of configurations, by sets of machines that measure at once. Returns those that
        were measured now, in the order of the journal, in which a resumed tuning takes them."""
        kept: dict[tuple[str, int], OnlineSummary] = {}

        def keep(cell: Cell, summary: OnlineSummary) -> None:
            kept[cell.engine_variant.label, cell.repeat] = summary

        blocks = [[self._block(*turn) for turn in own if turn not in self._done] for own in turns]
        measure_blocks(self._run, self._resolved, blocks, self._notify, keep)
        entries = read_journal(self._run.folder / JOURNAL)
        return {turn: kept[turn] for entry in entries if (turn := (entry.label, entry.repeat)) in kept}

    def _block(self, label: str, repeat: int) -> Block:
        cell = self._cell(self._variants[label], repeat)
        return Block(cell.engine_variant, (cell,))

    def _cell(self, engine_variant: EngineVariant, repeat: int) -> Cell:
        settings, index = self._run.settings, self.begun
        self.begun += 1
        shape = np.random.SeedSequence([settings.seed, repeat], spawn_key=(_TUNING,))
        return Cell(
            index,
            engine_variant,
            settings.loads[0],
            repeat,
            load_seed=prompt_seed([settings.seed, _TUNING, repeat]),
            shape_seed=int(shape.generate_state(1, np.uint64)[0]),
        )


def _reason(run: Run, label: str) -> str:
    """Why a configuration failed last."""
    return next((fault.said for fault in reversed(run.skipped) if fault.label == label), "it failed")
