"""`bench tune`: configurations of an engine, halved successively, the best ones compared with the default."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from statistics import fmean
from types import ModuleType

from harness.engines.base import EngineVariant
from harness.errors import BenchError, UsageError
from harness.metrics.contrast import Contrast, contrast, judged
from harness.metrics.estimates import Point, measure
from harness.metrics.samples import Group, by_load
from harness.runs.events import CellsExpected, ConfigurationDropped, Notify
from harness.runs.limits import MAX_FAILED, failed_share, holds, parse_limits, value_of
from harness.runs.schedule import Cell, Done, Plan, balanced_orders
from harness.schema.limits import GateTerm, Slo, names_of
from harness.schema.metrics import METRICS
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults, OnlineSummary, Skipped
from harness.schema.tune import Configuration, ConfigurationFound, FinalistFound, State, TunePlan, TuneResults
from harness.traces.sampling import prompt_seed, shape_seed

#: Sets the seeds of a tuning apart from those of other runs.
_TUNING = 3


class Tune(Plan):
    """Measures configurations in rounds while they are many, then the finalists beside the default.

    Each cell has a fresh server. The configurations of a round are measured in a balanced order, by turns on
    the sets of machines that there are, and get the same prompts. One that fails is out; the others go on.
    A repeat of all finalists and the default stays on one set.

    Args:
        settings: Of the run; its engines are the configurations.
        sides: Sets of machines that measure at once.
        notify: Receives an event for each configuration that is left out.
    """

    is_estimate = True

    def __init__(
        self,
        plan: TunePlan,
        settings: OnlineSettings,
        engine_variants: Sequence[EngineVariant],
        sides: int,
        notify: Notify,
    ) -> None:
        self.plan, self.settings = plan, settings
        self._variants = {variant.label: variant for variant in engine_variants}
        self._sides, self._notify = sides, notify
        self._dropped: set[str] | None = None

    def next(self, done: Done) -> list[Cell] | None:
        tuning = self._tuning(done)
        self._tell_dropped(tuning)
        if fault := tuning.all[tuning.default].fault:
            raise BenchError(f"the default cannot be measured: {fault}")
        labels = list(tuning.all)
        orders = balanced_orders(len(labels), self.plan.rounds, self.settings.seed)
        for repeat, order in enumerate([] if tuning.decided else orders):
            waiting = [
                labels[place]
                for place in order
                if (measured := tuning.all[labels[place]]).is_in and measured.repeats <= repeat
            ]
            if waiting:
                together = [(label, repeat, side) for side, label in enumerate(waiting[: self._sides])]
                self._notify(CellsExpected(self.expected(done)))
                return self._cells(together, done)
        comparison = self._comparison(tuning, done)
        if comparison:
            self._notify(CellsExpected(len(done.entries) + len(comparison)))
        return self._cells(comparison, done) or None

    def expected(self, done: Done) -> int:
        tuning, plan = self._tuning(done), self.plan
        if not done.entries:
            return plan.cells(self.settings.repeats)
        repeats = [measured.repeats for measured in tuning.all.values() if measured.is_in]
        repeat = min(repeats, default=plan.rounds)
        if tuning.decided or repeat >= plan.rounds:
            return len(done.entries) + len(self._comparison(tuning, done))
        waiting = repeats.count(repeat)
        finalists = 1 + min(plan.finalists, len(plan.configurations) - 1)
        compared = finalists * self.settings.repeats
        return len(done.entries) + waiting + plan.later(len(repeats), repeat + 1) + compared

    def result(self, done: Done, results: OnlineResults, groups: Sequence[Group]) -> OnlineResults:
        tuning = self._tuning(done)
        tune = tune_results(tuning, groups, results.summaries, self.settings.slo)
        return results.model_copy(update={"tune": tune})

    def _tuning(self, done: Done) -> Tuning:
        return tuning_of(self.plan, [entry.figures for entry in done.entries], done.failed)

    def _comparison(self, tuning: Tuning, done: Done) -> list[tuple[str, int, int]]:
        """Return label, repeat and side of what the comparison lacks."""
        measured = {(entry.label, entry.repeat) for entry in done.entries}
        measured |= {(fault.label, fault.repeat) for fault in done.failed if fault.repeat is not None}
        labels = [tuning.default, *tuning.finalists]
        orders = balanced_orders(len(labels), self.settings.repeats, self.settings.seed)
        return [
            (labels[place], self.plan.rounds + repeat, repeat % self._sides)
            for repeat, order in enumerate(orders)
            for place in order
            if (labels[place], self.plan.rounds + repeat) not in measured
        ]

    def _cells(self, turns: Sequence[tuple[str, int, int]], done: Done) -> list[Cell]:
        """Return cells of these labels and repeats, on these sides."""
        settings = self.settings
        cells = []
        for index, (label, repeat, side) in enumerate(turns, start=done.next_index):
            cells.append(
                Cell(
                    index,
                    self._variants[label],
                    settings.loads[0],
                    repeat,
                    load_seed=prompt_seed([settings.seed, _TUNING, repeat]),
                    shape_seed=shape_seed([settings.seed, repeat], _TUNING),
                    side=side,
                )
            )
        return cells

    def _tell_dropped(self, tuning: Tuning) -> None:
        """Notify of configurations that are left out now; not of those of an earlier command."""
        dropped = {label for label, measured in tuning.all.items() if not measured.goes_on}
        for label, measured in tuning.all.items():
            if self._dropped is not None and label in dropped - self._dropped:
                self._notify(ConfigurationDropped(label, measured.repeats))
        self._dropped = dropped


#: Beyond any difference of logarithms: what misses a limit, or has no value, comes after what does not.
_MISSED, _NOTHING = 1e3, 1e6


def tuning_of(plan: TunePlan, measured: Iterable[OnlineSummary], skipped: Iterable[Skipped] = ()) -> Tuning:
    """Return a tuning with all its cells, in the order in which they were measured.

    Args:
        skipped: Cells that could not be measured.
    """
    tuning = Tuning(plan)
    for summary in measured:
        if summary.repeat is not None and summary.repeat < plan.rounds:
            tuning.take(summary)
    for fault in skipped:
        if fault.repeat is not None:
            kind = "fault" if fault.repeat < plan.rounds else "late_fault"
            setattr(tuning.all[fault.label], kind, fault.said)
    return tuning


@dataclass
class Measured:
    """One configuration so far.

    Attributes:
        number: Its position in the plan.
        goes_on: False when it was measured and is not measured again.
        fault: Why it cannot be measured; empty: it can.
        late_fault: Why it could not be compared with the default.
    """

    configuration: Configuration
    number: int
    summaries: list[OnlineSummary] = field(default_factory=list)
    goes_on: bool = True
    fault: str = ""
    late_fault: str = ""

    @property
    def repeats(self) -> int:
        """Number of times that it was measured."""
        return len(self.summaries)

    @property
    def is_in(self) -> bool:
        """True while it is still measured."""
        return self.goes_on and not self.fault


class Tuning:
    """Configurations of a plan, by label, before they are compared with the default."""

    def __init__(self, plan: TunePlan) -> None:
        self.plan = plan
        self.metric, self.statistic = names_of(plan.objective)
        self.terms: list[GateTerm] = parse_limits(plan.limits) if plan.limits else []
        self.all = {c.label: Measured(c, number) for number, c in enumerate(plan.configurations)}
        self.default = plan.configurations[0].label
        self._halving = Halving(len(plan.configurations), plan.reduction)

    def take(self, summary: OnlineSummary) -> None:
        """Add a measured cell of a configuration, and decide whether that goes on."""
        measured = self.all[summary.label]
        measured.summaries.append(summary)
        measured.goes_on = self._halving.goes_on(measured.number, measured.repeats, self._cost(measured))

    @property
    def decided(self) -> bool:
        """True if no more configurations are left than go into the comparison."""
        return sum(measured.is_in for measured in self._others) <= self.plan.finalists

    @property
    def finalists(self) -> list[str]:
        """Labels of those that are compared with the default: measured most often, and best."""
        judged = any(m.summaries for m in self._others)
        able = [m for m in self._others if (m.summaries or not judged) and not m.fault]
        able.sort(key=lambda m: (not m.goes_on, -m.repeats, self._cost(m)))
        return [m.configuration.label for m in able[: self.plan.finalists]]

    def results(self, compared: Collection[str]) -> list[ConfigurationFound]:
        """Return every configuration with what was measured of it.

        Args:
            compared: Labels of those that were measured in the comparison.
        """
        finalists = set(self.finalists)
        return [
            self._found(m, label in finalists, m.fault or ("" if label in compared else m.late_fault))
            for label, m in self.all.items()
        ]

    @property
    def _others(self) -> list[Measured]:
        return [measured for label, measured in self.all.items() if label != self.default]

    def _found(self, measured: Measured, finalist: bool, fault: str) -> ConfigurationFound:
        state: State = "default" if measured.number == 0 else "finalist" if finalist else "left out"
        if fault:
            state = "failed"
        return ConfigurationFound(
            **measured.configuration.model_dump(),
            state=state,
            values=[self._value(summary) for summary in measured.summaries],
            invalid=sum(not summary.valid for summary in measured.summaries),
            limits={term.text: _mean(measured.summaries, term) for term in self.terms},
            reason=fault,
        )

    def _value(self, summary: OnlineSummary) -> float | None:
        return summary.value(self.metric, self.statistic) if summary.num_success else None

    def _cost(self, measured: Measured) -> float:
        """Lower is better: the logarithm of the mean; what misses limits comes after, by how far it does."""
        if not measured.summaries:
            return 0.0
        values = [value for summary in measured.summaries if (value := self._value(summary))]
        if len(values) < len(measured.summaries):
            return _NOTHING
        cost = math.log(fmean(values))
        excess = [_excess(term, _mean(measured.summaries, term)) for term in self.terms]
        failed = fmean(map(failed_share, measured.summaries))
        if failed > MAX_FAILED:
            excess.append(failed)
        if any(excess):
            return _MISSED + sum(excess)
        return cost if METRICS[self.metric].lower_is_better else -cost


def _mean(summaries: Sequence[OnlineSummary], term: GateTerm) -> float | None:
    values = [value for summary in summaries if (value := value_of(summary, term)) is not None]
    return fmean(values) if values and len(values) == len(summaries) else None


def _excess(term: GateTerm, value: float | None) -> float:
    """Return the distance of a value beyond its limit, as a logarithm; 0 within it."""
    if value is None:
        return _MISSED
    if holds(term, value):
        return 0.0
    return abs(math.log(max(value, 1e-9) / max(term.limit, 1e-9))) or 1e-9


def optuna() -> ModuleType:
    """The package, which is an extra. Raises UsageError where it is not installed."""
    try:
        package = import_module("optuna")
    except ImportError:
        raise UsageError("bench tune needs Optuna", "pip install 'rosebench[tune]'") from None
    package.logging.set_verbosity(package.logging.WARNING)
    return package


class Halving:
    """Asynchronous successive halving (Li et al., A System for Massively Parallel Hyperparameter Tuning,
    MLSys 2020) with repeats as the resource.

    A configuration is judged at 1, r, r² … repeats, against those that have been judged there before, and
    goes on if it is among the best of one in r. The best so far is never dropped.

    Args:
        count: Configurations, which are numbered from 0.
        reduction: r.
    """

    def __init__(self, count: int, reduction: int) -> None:
        package = optuna()
        pruner = package.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=reduction)
        study = package.create_study(pruner=pruner)
        self._trials = [study.ask() for _ in range(count)]

    def goes_on(self, number: int, repeats: int, cost: float) -> bool:
        """Decide if a configuration is measured again after so many repeats. A lower cost is better."""
        trial = self._trials[number]
        trial.report(cost, step=repeats)
        return not trial.should_prune()


def tune_results(
    tuning: Tuning, groups: Sequence[Group], summaries: Sequence[OnlineSummary], slo: Slo | None
) -> TuneResults:
    """Judge each finalist by the repeats of the comparison alone.

    Args:
        groups: The raw tables of the comparison.
        summaries: Of the comparison, pooled ones among them.
    """
    points = {repeats[0].label: measure(repeats, slo) for repeats in by_load(groups)}
    pooled = {summary.label: summary for summary in summaries if summary.repeat is None}
    contrasts = _contrasts(tuning, points)
    finalists = [
        _finalist(tuning, label, contrasts.get(label), pooled.get(label)) for label in tuning.finalists
    ]
    default = pooled.get(tuning.default)
    better = [
        finalist
        for finalist in finalists
        if default is not None and default.valid
        if finalist.verdict == "better" and finalist.within is not False and pooled[finalist.label].valid
    ]
    sign = 1 if METRICS[tuning.metric].lower_is_better else -1
    best = min(better, key=lambda finalist: sign * (finalist.ratio or 1.0), default=None)
    return TuneResults(
        plan=tuning.plan,
        configurations=tuning.results(points.keys()),
        finalists=finalists,
        best=best and best.label,
        default_invalid=None if default is None else next(iter(default.invalid_reasons), None),
    )


def _contrasts(tuning: Tuning, points: Mapping[str, Point]) -> dict[str, Contrast]:
    """Contrast each measured finalist with the default, corrected for all of them."""
    default, key = points.get(tuning.default), (tuning.metric, tuning.statistic)
    if default is None:
        return {}
    contrasts = {
        label: pairs[0]
        for label in tuning.finalists
        if label in points
        and (pairs := contrast(default.pooled.load, points[label].estimates, default.estimates, [key]))
    }
    return dict(zip(contrasts, judged(list(contrasts.values())), strict=True))


def _finalist(
    tuning: Tuning, label: str, against: Contrast | None, pooled: OnlineSummary | None
) -> FinalistFound:
    within = None
    if tuning.terms and pooled is not None:
        within = all(holds(term, value_of(pooled, term)) for term in tuning.terms)
    return FinalistFound(
        label=label,
        value=None if against is None else against.a.value,
        default=None if against is None else against.b.value,
        ratio=None if against is None else against.ratio.value,
        ci=None if against is None else against.ratio.ci,
        verdict="not enough data" if against is None else against.verdict,
        repeats=(0, 0) if against is None else against.repeats,
        within=within,
    )
