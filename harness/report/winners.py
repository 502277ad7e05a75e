"""The best engine at a load by each metric, and which engines it really differs from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from harness.metrics.percentiles import missing
from harness.metrics.primary import compared_by
from harness.report.best import better, differs, excludes_one
from harness.schema.metrics import COMPARED_PERCENTILES, METRICS
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Comparison

#: Those that are compared, from the highest on.
PERCENTILES = tuple(f"p{q}" for q in reversed(COMPARED_PERCENTILES))


class Lost(NamedTuple):
    """Engines that are really better than `label` by a statistic, the best first, and its comparison with
    that one."""

    statistic: str
    better: tuple[str, ...]
    label: str
    comparison: Comparison


@dataclass(frozen=True)
class Winner:
    """The engine with the best value of a statistic.

    Attributes:
        level: Those from which it shows no difference, the best first.
        unproven: Comparisons with those of `level` from which it differs by its own interval, but not after
            correction.
        loser: The best one that it differs from; None where it differs from none.
        comparison: With the loser, or else with the next best one; None where there is none.
        also: Higher percentiles, in which it is best and differs from another too: the percentile, and from
            which ones, none where it is from all, as in this statistic.
        undecided: Higher percentiles, in which the best one differs from none.
        too_few: Higher percentiles that cannot be compared: an engine has too few requests.
        others: Other percentiles in which others are really better than it, or, where it differs from none,
            one is really better than another.
        pairs: Its comparisons with the others, by their labels.
    """

    metric: str
    statistic: str
    label: str
    level: tuple[str, ...]
    loser: str | None
    comparison: Comparison | None
    also: tuple[tuple[str, tuple[str, ...]], ...] = ()
    undecided: tuple[str, ...] = ()
    too_few: tuple[str, ...] = ()
    others: tuple[Lost, ...] = ()
    unproven: tuple[Comparison, ...] = ()
    pairs: Mapping[str, Comparison] = field(default_factory=dict)

    @property
    def alike(self) -> tuple[str, ...]:
        """Those of `level` from which it differs by no interval."""
        unproven = {label for found in self.unproven for label in (found.a, found.b)}
        return tuple(label for label in self.level if label not in unproven)


def winners(engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison]) -> dict[str, Winner | None]:
    """The winner among valid `engines` at one load by each metric that they are compared by.

    Latencies have one percentile: the highest in which engines differ by each latency by which they differ in
    any; where they differ in some but there is no such one, the lowest. None where no percentile is
    supported, or a pair of engines has no interval.
    """
    found = {
        metric: {
            name: _winner(engines, comparisons, metric, name)
            for name in (PERCENTILES if METRICS[metric].is_latency else (metric,))
            if supported(engines, comparisons, metric, name)
        }
        for metric in compared_by(engines[0].load)
    }
    shared = _shared([by for metric, by in found.items() if METRICS[metric].is_latency and by])
    return {
        metric: _with_others(by, shared if shared in by else next(iter(by)), engines, comparisons)
        if by
        else None
        for metric, by in found.items()
    }


def _shared(latencies: Sequence[Mapping[str, Winner]]) -> str | None:
    """The percentile in which latencies are compared, each by its percentiles from the highest on; None where
    they have none in common."""
    names = [name for name in PERCENTILES if latencies and all(name in by for by in latencies)]
    differing = [by for by in latencies if any(found.loser is not None for found in by.values())]
    decided = (name for name in names if all(by[name].loser is not None for by in differing))
    return next(decided, names[-1] if names else None)


def _with_others(
    by: Mapping[str, Winner],
    statistic: str,
    engines: Sequence[OnlineSummary],
    comparisons: Sequence[Comparison],
) -> Winner:
    """The winner by a statistic, with what other percentiles show."""
    best, names = by[statistic], list(by)
    higher = [name for name in names[: names.index(statistic)] if best.loser is not None]
    labels = [engine.label for engine in engines if engine.label != best.label]
    also = tuple(
        (
            name,
            tuple(label for label in labels if label not in same.level) if best.level or same.level else (),
        )
        for name in higher
        if (same := by[name]).loser is not None and same.label == best.label
    )
    undecided = tuple(name for name in higher if by[name].loser is None)
    above = PERCENTILES[: PERCENTILES.index(statistic)] if METRICS[best.metric].is_latency else ()
    too_few = tuple(name for name in above if name not in by)
    others = []
    for name in names:
        there = by[name]
        if name != statistic and (lost := _lost(best.label, engines, comparisons, best.metric, name)):
            others.append(lost)
        elif best.loser is None and there.loser is not None:
            others.append(Lost(name, (there.label,), there.loser, there.pairs[there.loser]))
    return replace(best, also=also, undecided=undecided, too_few=too_few, others=tuple(others))


def _winner(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str, statistic: str
) -> Winner:
    """The winner by a statistic that all of them support."""
    first, *others = ranked(engines, metric, statistic)
    pairs = pairs_of(engines, comparisons, metric, statistic)
    against = [(label, pairs[pair]) for label in others if (pair := frozenset((first, label))) in pairs]
    level = tuple(label for label, comparison in against if not differs(comparison))
    unproven = tuple(found for _, found in against if not differs(found) and excludes_one(found.ci))
    lost = next((item for item in against if differs(item[1])), None)
    other, comparison = lost or (None, against[0][1] if against else None)
    return Winner(metric, statistic, first, level, other, comparison, unproven=unproven, pairs=dict(against))


def lost_elsewhere(
    label: str, engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison]
) -> list[Lost]:
    """By which percentiles of the latencies that decide no winner others are really better than `label`."""
    decided = compared_by(engines[0].load)
    found = [
        _lost(label, engines, comparisons, metric, name)
        for metric in ("itl_ms", "e2e_ms")
        if metric not in decided
        for name in reversed(PERCENTILES)
        if supported(engines, comparisons, metric, name)
    ]
    return [lost for lost in found if lost is not None]


def _lost(
    label: str,
    engines: Sequence[OnlineSummary],
    comparisons: Sequence[Comparison],
    metric: str,
    statistic: str,
) -> Lost | None:
    """The engines that are really better than `label` by a statistic; None where none is."""
    against = {
        better(comparison): comparison
        for pair, comparison in pairs_of(engines, comparisons, metric, statistic).items()
        if label in pair and differs(comparison) and better(comparison) != label
    }
    better_ones = tuple(other for other in ranked(engines, metric, statistic) if other in against)
    return Lost(statistic, better_ones, label, against[better_ones[0]]) if better_ones else None


def ranked(engines: Sequence[OnlineSummary], metric: str, statistic: str) -> list[str]:
    """Their labels, the best first."""
    descending = not METRICS[metric].lower_is_better
    in_order = sorted(engines, key=lambda engine: engine.value(metric, statistic) or 0.0, reverse=descending)
    return [engine.label for engine in in_order]


def pairs_of(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str, statistic: str
) -> dict[frozenset[str], Comparison]:
    """The comparisons of a statistic at the load of `engines`, by the pair of labels."""
    wanted, labels = (engines[0].load, metric, statistic), {engine.label for engine in engines}
    return {
        frozenset((found.a, found.b)): found
        for found in comparisons
        if (found.load, found.metric, found.statistic) == wanted and {found.a, found.b} <= labels
    }


def supported(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str, statistic: str
) -> bool:
    """Whether a statistic of all engines can be shown, and each pair has an interval for it."""
    pairs = pairs_of(engines, comparisons, metric, statistic)
    shown = statistic == metric or all(
        not missing(int(statistic[1:]), engine.latency(metric).n) for engine in engines
    )
    return shown and all(comparison.ci is not None for comparison in pairs.values())
