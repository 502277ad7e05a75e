"""The state of a tuning: what was measured of each configuration, and which go on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from harness.runs.search_state import MAX_FAILED, failed_share, holds, parse_limits, value_of
from harness.runs.tune.halving import Halving
from harness.schema.limits import GateTerm, names_of
from harness.schema.metrics import METRICS
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Skipped
from harness.schema.tune import Configuration, ConfigurationFound, State, TunePlan

#: Beyond any difference of logarithms: what misses a limit, or has no value, comes after what does not.
_MISSED, _NOTHING = 1e3, 1e6


@dataclass
class _Measured:
    """One configuration so far. `fault` is why it cannot be measured, `late_fault` why it could not be
    compared with the default."""

    given: Configuration
    number: int
    summaries: list[OnlineSummary] = field(default_factory=list)
    goes_on: bool = True
    fault: str = ""
    late_fault: str = ""


class Tuning:
    """What is known of the configurations of a plan before they are compared with the default."""

    def __init__(self, plan: TunePlan) -> None:
        self.plan = plan
        self.metric, self.statistic = names_of(plan.objective)
        self.terms: list[GateTerm] = parse_limits(plan.limits) if plan.limits else []
        self._all = {c.label: _Measured(c, number) for number, c in enumerate(plan.configurations)}
        self._halving = Halving(len(plan.configurations), plan.reduction)

    @property
    def default(self) -> str:
        """Its label."""
        return self.plan.configurations[0].label

    def take(self, summary: OnlineSummary) -> bool:
        """A cell of a configuration was measured. Returns whether the configuration goes on."""
        measured = self._all[summary.label]
        measured.summaries.append(summary)
        repeats = len(measured.summaries)
        measured.goes_on = self._halving.goes_on(measured.number, repeats, self._cost(measured))
        return measured.goes_on

    def fail(self, label: str, reason: str) -> None:
        """A configuration could not be measured."""
        self._all[label].fault = reason

    def fail_late(self, label: str, reason: str) -> None:
        """A configuration that is compared with the default could not be measured, or not each time."""
        self._all[label].late_fault = reason

    def goes_on(self, label: str) -> bool:
        """Whether a configuration is still measured."""
        return self._all[label].goes_on and not self._all[label].fault

    def later(self, repeat: int) -> int:
        """About how many cells follow the round of that repeat, before the comparison."""
        return self.plan.later(sum(map(self.goes_on, self._all)), repeat + 1)

    def lacks(self, label: str, repeat: int) -> bool:
        """Whether a configuration has not been measured as often as that."""
        return len(self._all[label].summaries) <= repeat

    @property
    def decided(self) -> bool:
        """Whether no more configurations are left than go into the comparison."""
        return len([label for label in self._others if self.goes_on(label)]) <= self.plan.finalists

    @property
    def finalists(self) -> list[str]:
        """The labels of those that are compared with the default: measured most often, and best."""
        every = [self._all[label] for label in self._others]
        judged = any(m.summaries for m in every)
        known = [m for m in every if (m.summaries or not judged) and not m.fault]
        known.sort(key=lambda m: (not m.goes_on, -len(m.summaries), self._cost(m)))
        return [m.given.label for m in known[: self.plan.finalists]]

    def found(self, compared: Collection[str]) -> list[ConfigurationFound]:
        """Every configuration with what was measured of it.

        Args:
            compared: Labels of those that were measured in the comparison.
        """
        finalists = set(self.finalists)
        return [
            self._found(m, label in finalists, m.fault or ("" if label in compared else m.late_fault))
            for label, m in self._all.items()
        ]

    @property
    def _others(self) -> Sequence[str]:
        return [label for label in self._all if label != self.default]

    def _found(self, measured: _Measured, finalist: bool, fault: str) -> ConfigurationFound:
        state: State = "default" if measured.number == 0 else "finalist" if finalist else "left out"
        if fault:
            state = "failed"
        return ConfigurationFound(
            **measured.given.model_dump(),
            state=state,
            values=[self._value(summary) for summary in measured.summaries],
            invalid=sum(not summary.valid for summary in measured.summaries),
            limits={term.text: _mean(measured.summaries, term) for term in self.terms},
            reason=fault,
        )

    def _value(self, summary: OnlineSummary) -> float | None:
        return summary.value(self.metric, self.statistic) if summary.num_success else None

    def _cost(self, measured: _Measured) -> float:
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
    values = [value_of(summary, term) for summary in summaries]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _excess(term: GateTerm, value: float | None) -> float:
    """How far a value is beyond its limit, as a logarithm; 0 within it."""
    if value is None:
        return _MISSED
    if holds(term, value):
        return 0.0
    return abs(math.log(max(value, 1e-9) / max(term.limit, 1e-9))) or 1e-9


def tuning_of(plan: TunePlan, measured: Iterable[OnlineSummary], skipped: Iterable[Skipped] = ()) -> Tuning:
    """A tuning with all its cells, in the order in which they were measured.

    Args:
        skipped: What could not be measured.
    """
    tuning = Tuning(plan)
    for summary in measured:
        if summary.repeat is not None and summary.repeat < plan.rounds:
            tuning.take(summary)
    for fault in skipped:
        if fault.repeat is not None:
            fail = tuning.fail if fault.repeat < plan.rounds else tuning.fail_late
            fail(fault.label, fault.said)
    return tuning
