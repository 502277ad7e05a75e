"""The best engine at a load by one metric, and which engines it really differs from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.metrics.percentiles import missing
from harness.report.best import better, differs, excludes_one
from harness.schema.metrics import METRICS
from harness.schema.results import Comparison, OnlineSummary


@dataclass(frozen=True)
class Winner:
    """The engine with the best value of a statistic.

    Attributes:
        level: Those from which it shows no difference, the best first.
        unproven: With those of them from which it differs by one interval alone.
        loser: The best one that it differs from; None where it differs from none.
        comparison: With the loser, or else with the next best one; None where there is none.
        undecided: Higher percentiles, in which it shows no difference to any.
        beaten: Lower percentiles in which another engine is really better than it, and which.
    """

    metric: str
    statistic: str
    label: str
    level: tuple[str, ...]
    loser: str | None
    comparison: Comparison | None
    undecided: tuple[str, ...] = ()
    beaten: tuple[tuple[str, str], ...] = ()
    unproven: tuple[Comparison, ...] = ()

    @property
    def alike(self) -> tuple[str, ...]:
        """Those of `level` that no interval tells from it."""
        unproven = {label for found in self.unproven for label in (found.a, found.b)}
        return tuple(label for label in self.level if label not in unproven)


def winner(engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str) -> Winner | None:
    """The winner among valid `engines` at one load, by the highest percentile in which one differs from
    another, or else the highest that all of them support.

    None where no percentile is supported, or a pair of engines has no interval.
    """
    statistics = ("p99", "p90", "p50") if METRICS[metric].is_latency else (metric,)
    supported = [name for name in statistics if _supported(engines, comparisons, metric, name)]
    found = [_winner(engines, comparisons, metric, name) for name in supported]
    if not found:
        return None
    best = next((first for first in found if first.loser is not None), found[0])
    if best.loser is None:
        return best
    at = supported.index(best.statistic)
    better_ones = (
        (name, _beats(best.label, engines, comparisons, metric, name)) for name in supported[at + 1 :]
    )
    beaten = tuple((name, label) for name, label in better_ones if label is not None)
    return replace(best, undecided=tuple(supported[:at]), beaten=beaten)


def _winner(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str, statistic: str
) -> Winner:
    """The winner by a statistic that all of them support."""
    first, *others = _ranked(engines, metric, statistic)
    pairs = _of(engines, comparisons, metric, statistic)
    against = [(label, pairs[pair]) for label in others if (pair := frozenset((first, label))) in pairs]
    level = tuple(label for label, comparison in against if not differs(comparison))
    unproven = tuple(found for _, found in against if not differs(found) and excludes_one(found.ci))
    lost = next((item for item in against if differs(item[1])), None)
    other, comparison = lost or (None, against[0][1] if against else None)
    return Winner(metric, statistic, first, level, other, comparison, unproven=unproven)


def _beats(
    label: str,
    engines: Sequence[OnlineSummary],
    comparisons: Sequence[Comparison],
    metric: str,
    statistic: str,
) -> str | None:
    """The best engine that is really better than `label` by a statistic; None where none is."""
    pairs = _of(engines, comparisons, metric, statistic)
    lost = {
        better(comparison) for pair, comparison in pairs.items() if label in pair and differs(comparison)
    } - {label}
    return next((other for other in _ranked(engines, metric, statistic) if other in lost), None)


def _ranked(engines: Sequence[OnlineSummary], metric: str, statistic: str) -> list[str]:
    """Their labels, the best first."""
    descending = not METRICS[metric].lower_is_better
    ranked = sorted(engines, key=lambda engine: engine.value(metric, statistic) or 0.0, reverse=descending)
    return [engine.label for engine in ranked]


def _of(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str, statistic: str
) -> dict[frozenset[str], Comparison]:
    """The comparisons of a statistic at the load of `engines`, by the pair of labels."""
    wanted, labels = (engines[0].load, metric, statistic), {engine.label for engine in engines}
    return {
        frozenset((found.a, found.b)): found
        for found in comparisons
        if (found.load, found.metric, found.statistic) == wanted and {found.a, found.b} <= labels
    }


def _supported(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str, statistic: str
) -> bool:
    """Whether a statistic of all engines can be shown, and each pair has an interval for it."""
    pairs = _of(engines, comparisons, metric, statistic)
    shown = statistic == metric or all(
        not missing(int(statistic[1:]), engine.latency(metric).n) for engine in engines
    )
    return shown and all(comparison.ci is not None for comparison in pairs.values())
