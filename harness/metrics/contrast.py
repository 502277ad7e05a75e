"""Comparisons of two engines at one load by each statistic: ratio, verdict, and the repeats that it takes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations
from typing import Any

from scipy import special

from harness.metrics.estimates import COMPARED, COMPARED_OF_BATCH, Estimates, Key, Point
from harness.metrics.intervals import LEVEL, Effect, Estimate, are_paired, common, difference, ratio, ratios
from harness.schema.base import Verdict
from harness.schema.compare_results import EFFECTS
from harness.schema.load import Batch, ClosedLoop, Load
from harness.schema.metrics import METRICS, latencies, rates
from harness.schema.results import Comparison

#: Statistic of a latency that is compared first: it varies least from repeat to repeat, so a difference shows
#: in it first.
STATISTIC = "p50"
#: Part of the level that the primary comparisons share; the others have the rest.
SHARE = 0.8
#: Chance with which planned repeats find an effect.
POWER = 0.9
MAX_REPEATS = 1000

#: The spread of few repeats may be small by chance: its upper limit at this confidence is planned with.
SPREAD_CONFIDENCE = 0.8


def compared_by(load: Load) -> tuple[str, ...]:
    """Return the headline metrics that say something at a load: not a rate that the load sets, and of a batch
    the rates alone."""
    if isinstance(load, Batch):
        return rates("headline")
    open_loop = not isinstance(load, ClosedLoop)
    shown = [name for name in rates("headline") if not (open_loop and METRICS[name].set_by_load)]
    return (*latencies("headline"), *shown)


@dataclass(frozen=True)
class Contrast:
    """One statistic of two engines at one load. `ratio` is a / b, `delta` is a − b.

    Attributes:
        adjusted_p: the p-value of the ratio, corrected for all comparisons made at once.
        comparisons: how many those are.
        level: its part of the level of all of them, before any is found.
    """

    load: Load
    metric: str
    statistic: str
    a: Estimate
    b: Estimate
    ratio: Effect
    delta: Effect
    adjusted_p: float | None = None
    comparisons: int = 1
    level: float = LEVEL

    @property
    def primary(self) -> bool:
        """Tell whether it is one of the few comparisons that keep most of the level of all."""
        return self.metric in compared_by(self.load) and self.statistic in (STATISTIC, self.metric)

    @property
    def verdict(self) -> Verdict:
        """Verdict on `a` against `b`, at 5 % for all comparisons made at once."""
        if self.adjusted_p is None:
            return "not enough data"
        if self.adjusted_p > LEVEL or self.ratio.holds_one:
            return "no difference"
        return "better" if (self.ratio.value < 1) == METRICS[self.metric].lower_is_better else "worse"

    @property
    def recorded(self) -> dict[str, Any]:
        """The fields that it has in results of a run as well as of two."""
        names = ("load", "metric", "statistic", "adjusted_p", "verdict", "spread", "repeats_to_find")
        return {name: getattr(self, name) for name in names} | {"ratio": self.ratio.value}

    @property
    def paired(self) -> bool:
        """Tell whether it is compared repeat by repeat, as both had the same work in each."""
        return are_paired(self.a, self.b)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the logarithm from repeat to repeat, of both, or where they are paired of the
        ratio; None if one was seen once."""
        if not (self.a.has_log and self.b.has_log) or self.missing:
            return None
        if self.paired:
            return ratios(self.a, self.b).spread(log=True)
        spreads = [(estimate.spread(log=True), estimate.repeats - 1) for estimate in (self.a, self.b)]
        both = [(spread, freedom) for spread, freedom in spreads if spread is not None]
        if len(both) < 2:
            return None
        return math.sqrt(math.fsum(s * s * n for s, n in both) / sum(n for _, n in both))

    def repeats_for(self, effect: float) -> int | None:
        """Return the repeats of each that would find a difference of so much; None: unknown, or too many."""
        if (spread := self.spread) is None:
            return None
        return repeats_to_find(effect, spread, self.repeats, self.level, paired=self.paired)

    @property
    def repeats_to_find(self) -> dict[str, int | None]:
        """Repeats of each that would find each of `EFFECTS`."""
        return {name: self.repeats_for(effect) for name, effect in EFFECTS.items()}

    @property
    def repeats(self) -> tuple[int, int]:
        """Number of repeats of `a` and of `b`."""
        return self.a.repeats, self.b.repeats

    @property
    def missing(self) -> int:
        """Requests or tokens that the poorer sample lacks to support the statistic."""
        return max(self.a.missing, self.b.missing)


def contrast(
    load: Load, a: Mapping[Key, Estimate], b: Mapping[Key, Estimate], keys: Iterable[Key] | None = None
) -> list[Contrast]:
    """Compare the statistics that both engines have, `b`'s not being 0; of repeats with work of their own,
    those that both have.

    Args:
        keys: The statistics; None: those that a run at such a load is compared by.
    """
    if keys is None:
        keys = COMPARED_OF_BATCH if isinstance(load, Batch) else COMPARED
    return [
        Contrast(load, *key, *both, ratio(*both), difference(*both))
        for key in keys
        if key in a and key in b and b[key].value > 0
        for both in [common(a[key], b[key])]
    ]


def judged(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Return contrasts with p-values corrected for all of them: at most 5 % chance of any false one.

    The primary ones share most of it, the others the rest.
    """
    primary = [contrast.primary for contrast in contrasts if contrast.ratio.p is not None]
    first, others = primary.count(True), primary.count(False)
    of_first, of_others = (SHARE / first, (1 - SHARE) / others) if first and others else (1.0, 1.0)
    weights = [of_first if contrast.primary else of_others for contrast in contrasts]
    total = first * of_first + others * of_others
    adjusted = holm([contrast.ratio.p for contrast in contrasts], weights)
    return [
        replace(
            contrast,
            adjusted_p=p,
            comparisons=max(1, len(primary)),
            level=LEVEL / max(contrast.a.looks, contrast.b.looks) * weight / (total or weight),
        )
        for contrast, p, weight in zip(contrasts, adjusted, weights, strict=True)
    ]


def holm(p_values: Sequence[float | None], weights: Sequence[float] | None = None) -> list[float | None]:
    """Return adjusted p-values: one below a level is a difference, with at most that chance of any false one.

    Holm, A Simple Sequentially Rejective Multiple Test Procedure (Scandinavian Journal of Statistics 6,
    1979), section 4 of it with weights: valid however the statistics depend on each other, as percentiles of
    the same requests do. A comparison without a p-value stays without one and does not count.

    Args:
        weights: Part of the level that each has, above 0; all the same if not given.
    """
    weights = weights or [1.0] * len(p_values)
    ordered = sorted((p / weights[place], place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    remaining = [*accumulate(weights[place] for _, place in reversed(ordered))][::-1]
    for (p, place), weight in zip(ordered, remaining, strict=True):
        largest = max(largest, min(1.0, weight * p))
        adjusted[place] = largest
    return adjusted


def compare_points(points: Sequence[Point], without: Collection[str] = ()) -> list[Comparison]:
    """Compare engines pairwise at each load, all repeats pooled; the one that appears first is `a`.

    Args:
        without: Metrics that are not compared.

    Returns:
        `a / b` for the statistics of `COMPARED`, load by load. A statistic that a sample does not
        support (p99 of fewer than 100 samples) has no interval. The verdicts hold for all pairs, loads and
        statistics together.
    """
    loads: dict[Load, dict[str, Estimates]] = {}
    for point in points:
        compared = {key: each for key, each in point.estimates.items() if key[0] not in without}
        loads.setdefault(point.pooled.load, {})[point.pooled.label] = compared
    labels = list(dict.fromkeys(point.pooled.label for point in points))
    pairs = [
        (pair, contrasted)
        for load, by_label in sorted(loads.items())
        for pair in combinations(labels, 2)
        if pair[0] in by_label and pair[1] in by_label
        for contrasted in contrast(load, by_label[pair[0]], by_label[pair[1]])
    ]
    verdicts = judged([contrasted for _, contrasted in pairs])
    return [_comparison(*pair, contrasted) for (pair, _), contrasted in zip(pairs, verdicts, strict=True)]


def _comparison(a: str, b: str, contrast: Contrast) -> Comparison:
    ci = contrast.ratio.ci
    return Comparison(
        a=a,
        b=b,
        **contrast.recorded,
        value_a=contrast.a.value,
        value_b=contrast.b.value,
        ci=ci,
        difference=None if ci is None else not contrast.ratio.holds_one,
        comparisons=contrast.comparisons,
        primary=contrast.primary,
        repeats=contrast.repeats,
    )


def needed_repeats(effect: float, spread: float, level: float = LEVEL, *, paired: bool = False) -> int | None:
    """Return the repeats of each engine with which a two-sided two-sample t-test finds `effect` with chance
    `POWER`.

    The test's statistic has a noncentral t distribution (Cohen, Statistical Power Analysis for the Behavioral
    Sciences, 1988, chapter 2; on log ratios as in Julious, Sample Sizes for Clinical Trials, 2010).

    Args:
        effect: relative difference, 0.1 for 10 %; above −1 and not 0.
        spread: standard deviation of the logarithm of the statistic from repeat to repeat, alike for both.
        level: of the test.
        paired: the test is a paired one, and the spread that of the logarithm of the ratio.

    Returns:
        At least 2; None where more than `MAX_REPEATS` are needed.
    """
    distance, counts = abs(math.log1p(effect)), range(2, MAX_REPEATS + 1)
    place = bisect_left(counts, POWER, key=lambda count: _power(count, distance, spread, level, paired))
    return counts[place] if place < len(counts) else None


def repeats_to_find(
    effect: float, spread: float, repeats: tuple[int, int], level: float = LEVEL, *, paired: bool = False
) -> int | None:
    """Return `needed_repeats` planned from a run: two engines' common spread, seen in so many repeats of
    each.

    Args:
        level: of the verdict that is to find it.
        paired: each repeat of one has its counterpart in the other; the spread is that of their ratio.
    """
    freedom = repeats[0] - 1 if paired else sum(repeats) - 2
    return needed_repeats(effect, upper_spread(spread, freedom), level, paired=paired)


def upper_spread(spread: float, freedom: int) -> float:
    """Return the upper confidence limit of a spread seen with `freedom` degrees of freedom.

    Browne, On the Use of a Pilot Sample for Sample Size Determination (Statistics in Medicine 14, 1995).
    """
    return spread * math.sqrt(freedom / float(special.chdtri(freedom, SPREAD_CONFIDENCE)))


def _power(repeats: int, distance: float, spread: float, level: float, paired: bool) -> float:
    """Return the chance that the difference is found on its own side."""
    samples = 1 if paired else 2
    freedom = samples * (repeats - 1)
    error = spread * math.sqrt(samples / repeats)
    if error * 1e6 < distance:
        return 1.0
    beyond = special.stdtrit(freedom, 1 - level / 2)
    return float(1 - special.nctdtr(freedom, distance / error, beyond))
