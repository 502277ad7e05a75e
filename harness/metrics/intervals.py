"""Intervals and p-values of one statistic, and of two engines' ratio and difference in it.

With several repeats the repeat is the unit: what differs between server starts, and between minutes of a
machine, is not in the requests of one repeat. Each repeat gives one value, percentiles by the median-unbiased
definition (Hyndman and Fan's type 8, The American Statistician 50, 1996), and Student's t on their logarithms
gives the interval; two engines are compared by Welch's t (Biometrika 34, 1947). Where each repeat has work of
its own, the same for both, they are compared by Student's t on the logarithms of the ratios of each repeat,
in one run or in two: what differs from run to run is in neither test.

One repeat shows nothing of how repeats differ. One engine's interval then speaks of that repeat alone: the
order statistics between which the percentile lies (Clopper and Pearson, Biometrika 26, 1934), for as many
independent observations as its requests are worth. A comparison assumes how far repeats differ, so that it
claims what is plain and nothing finer.

A run that looks at its results several times, to see whether they are enough (`--until`), spends an equal
part of the level on each look (Lan and DeMets, Biometrika 70, 1983), added up by Bonferroni's inequality:
error rate and coverage hold whichever look ends it. Its intervals hold at all looks together (Jennison and
Turnbull, Journal of the Royal Statistical Society B 51, 1989).

`benchmarks/interval_coverage.py` measures how often these intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]
Ends = tuple[float, float]

CONFIDENCE = 0.95
LEVEL = 1 - CONFIDENCE

#: Relative standard deviation from repeat to repeat of rates and of a latency's statistics, where there is
#: only one to see. No repeats of the published runs differ by more: docs/method.md.
ASSUMED_OF_RATES = 0.2
ASSUMED_OF_LATENCIES = {"mean": 0.45, "p50": 0.45, "p90": 0.65, "p95": 1.0, "p99": 1.0}

#: An error this small is rounding: repeats that are exactly alike.
_NOTHING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A statistic of one engine at one load.

    Attributes:
        value: of all repeats pooled, as it is shown.
        each: (R,) of each repeat.
        within: of one repeat, the 95 % interval by its own requests; None where they do not give one.
        missing: requests or tokens that the median repeat lacks for the statistic; 0: none.
        dependent: whether its requests depend on each other so much that it is too low, as p99 of a few
            independent ones is. Two engines' ratio bears that, an interval of its own does not.
        assumed: relative standard deviation from repeat to repeat where there is one.
        withheld: requests or tokens that all repeats together lack for the value to be shown; 0: none.
        work: what each repeat had to do, where every repeat has work of its own; () where all have the same.
        looks: how often its run may look at the results to see whether they are enough; each look has an
            equal part of the level.
    """

    value: float
    each: Floats
    within: Ends | None = None
    missing: int = 0
    dependent: bool = False
    assumed: float = ASSUMED_OF_RATES
    withheld: int = 0
    work: tuple[str, ...] = ()
    looks: int = 1

    @property
    def repeats(self) -> int:
        """Number of repeats."""
        return self.each.size

    @property
    def has_log(self) -> bool:
        """Tell whether it is positive in every repeat."""
        return self.value > 0 and bool(np.all(self.each > 0))

    def centre(self, log: bool) -> float:
        """The mean over the repeats, of the logarithm or plain."""
        return float(np.mean(np.log(self.each) if log else self.each))

    def spread(self, log: bool) -> float | None:
        """Standard deviation from repeat to repeat, of the logarithm or plain; None where it was not seen."""
        if self.repeats < 2:
            return None
        return float(np.std(np.log(self.each) if log else self.each, ddof=1))

    def error(self, log: bool) -> tuple[float, float]:
        """Standard error of the centre, and its degrees of freedom."""
        spread = self.spread(log)
        if spread is not None:
            return spread / math.sqrt(self.repeats), self.repeats - 1
        assumed = self.assumed * (1 if log else abs(self.value))
        within = 0.0
        if self.within is not None:
            low, high = np.log(self.within) if log else self.within
            within = float(high - low) / (2 * float(special.ndtri(1 - LEVEL / 2)))
        return math.hypot(assumed, within), math.inf


@dataclass(frozen=True)
class Measurement:
    """A value with its 95 % interval; None: what was measured gives none."""

    value: float
    ci: Ends | None = None

    def times(self, factor: float) -> Measurement:
        """Return the value and its interval times `factor`."""
        return Measurement(self.value * factor, self.ci and (self.ci[0] * factor, self.ci[1] * factor))

    def under(self, numerator: float) -> Measurement:
        """Return `numerator` divided by the value, which is not 0."""
        ends = (numerator / self.ci[1], numerator / self.ci[0]) if self.ci and self.ci[0] > 0 else None
        return Measurement(numerator / self.value, ends)


@dataclass(frozen=True)
class Effect:
    """Distance of two engines: the value, its 95 % interval, the two-sided p-value of none."""

    value: float
    ci: Ends | None = None
    p: float | None = None

    @property
    def holds_one(self) -> bool:
        """Tell whether a ratio's interval leaves open which of the two is larger: also where p says that
        repeats differ, and the values that are shown differ the other way round."""
        return self.ci is not None and self.ci[0] <= 1 <= self.ci[1]


def own_interval(estimate: Estimate | None) -> Ends | None:
    """Return the 95 % interval of one engine's statistic: of several repeats by t, of one by its requests."""
    if estimate is None or estimate.missing or estimate.dependent:
        return None
    return level(estimate) if estimate.repeats >= 2 else estimate.within


def level(estimate: Estimate) -> Ends | None:
    """The 95 % interval of what further repeats would give, on the logarithm where that exists."""
    if estimate.missing or estimate.dependent:
        return None
    log = estimate.has_log
    return _ends(estimate.value, estimate.centre(log), *estimate.error(log), log, estimate.looks)


def common(a: Estimate, b: Estimate) -> tuple[Estimate, Estimate]:
    """Both with the repeats of the same work alone, in one order; as they are where there are none."""
    places = {work: place for place, work in enumerate(b.work)}
    both = [(place, places[work]) for place, work in enumerate(a.work) if work in places]
    if not both:
        return a, b
    of_a, of_b = (list(chosen) for chosen in zip(*both, strict=True))
    return _only(a, of_a), _only(b, of_b)


def are_paired(a: Estimate, b: Estimate) -> bool:
    """Tell whether the repeats of both had the same work one by one, as `common` gives them."""
    return bool(a.work) and a.work == b.work


def ratio(a: Estimate, b: Estimate) -> Effect:
    """`a / b` of the two values; the interval is that of a typical repeat and holds it. `b` is not 0."""
    if not (a.has_log and b.has_log):
        return Effect(a.value / b.value)
    return _compared(a, b, log=True)


def ratios(a: Estimate, b: Estimate) -> Estimate:
    """`a / b` of each repeat, where they are paired."""
    return Estimate(a.value / b.value, a.each / b.each, looks=max(a.looks, b.looks))


def difference(a: Estimate, b: Estimate) -> Effect:
    """`a − b` of the two values, in the statistic's own unit; the interval is as that of `ratio`."""
    return _compared(a, b, log=False)


def order_statistics(share: float, n: int, independent: float) -> tuple[int, int] | None:
    """Ranks, from 1, between which the `share`-quantile lies with 95 %, by Clopper and Pearson.

    None where the sample is too small to bound it on both sides.

    Args:
        share: between 0 and 1.
        n: observations in the sample.
        independent: observations that it is worth.
    """
    below, above = share * independent, (1 - share) * independent
    low = math.floor(n * float(special.betaincinv(below, above + 1, LEVEL / 2)))
    high = math.ceil(n * float(special.betaincinv(below + 1, above, 1 - LEVEL / 2))) + 1
    return (low, high) if low >= 1 and high <= n else None


@cache
def bounded(share: float) -> int:
    """The smallest sample of independent observations that bounds the `share`-quantile on both sides."""
    n = 2
    while order_statistics(share, n, n) is None:
        n += 1
    return n


def wilson(right: float, n: float) -> Ends:
    """Return the 95 % interval of a share of which `right` of `n` were seen; `n` is above 0.

    Wilson, Journal of the American Statistical Association 22, 1927.
    """
    z = float(special.ndtri(1 - LEVEL / 2))
    share, spread = right / n, z * math.sqrt(right / n * (1 - right / n) / n + z * z / (4 * n * n))
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def error_rate_ends(failed: Sequence[int], counts: Sequence[int]) -> Ends:
    """Return the 95 % interval of the share of requests that fail, by `failed` of `counts` in each repeat.

    Requests of one repeat share a server, so of several repeats it is that of Student's t over them, for a
    ratio of two sums (Cochran, Sampling Techniques, 1977, chapter 6). It is never narrower than the exact one
    of independent requests (Clopper and Pearson, Biometrika 26, 1934): repeats that are alike by chance prove
    nothing. One repeat shows nothing of how repeats differ, so the exact interval is of its server alone.

    Args:
        failed, counts: (R,) each; there is a request.
    """
    k, n, repeats = sum(failed), sum(counts), len(counts)
    low = float(special.betaincinv(k, n - k + 1, LEVEL / 2)) if k else 0.0
    high = float(special.betaincinv(k + 1, n - k, 1 - LEVEL / 2)) if k < n else 1.0
    if repeats < 2:
        return low, high
    excess = np.subtract(failed, np.multiply(counts, k / n))  # failures above the share of all
    error = math.sqrt(repeats / (repeats - 1) * float(excess @ excess)) / n
    half = float(special.stdtrit(repeats - 1, 1 - LEVEL / 2)) * error
    return min(low, max(0.0, k / n - half)), max(high, min(1.0, k / n + half))


def _only(estimate: Estimate, places: list[int]) -> Estimate:
    """Return an estimate of some of its repeats; the value is their mean."""
    if places == list(range(estimate.repeats)):
        return estimate
    each = estimate.each[places]
    return replace(
        estimate, value=float(each.mean()), each=each, work=tuple(estimate.work[place] for place in places)
    )


def _compared(a: Estimate, b: Estimate, log: bool) -> Effect:
    if not are_paired(a, b) or a.repeats < 2:  # one repeat shows no spread: paired or not is the same
        return _welch(a, b, log)
    pairs = ratios(a, b) if log else Estimate(a.value - b.value, a.each - b.each)
    return _effect(pairs.value, pairs.centre(log), *pairs.error(log), log, max(a.looks, b.looks))


def _welch(a: Estimate, b: Estimate, log: bool) -> Effect:
    middle = a.centre(log) - b.centre(log)
    value = a.value / b.value if log else a.value - b.value
    if a.missing or b.missing:
        return Effect(value)
    (of_a, freedom_a), (of_b, freedom_b) = a.error(log), b.error(log)
    error = math.hypot(of_a, of_b)
    uncertain = of_a**4 / freedom_a + of_b**4 / freedom_b
    freedom = error**4 / uncertain if uncertain else math.inf
    return _effect(value, middle, error, freedom, log, max(a.looks, b.looks))


def _effect(value: float, middle: float, error: float, freedom: float, log: bool, looks: int) -> Effect:
    """Return the effect of `value` by t, `middle` having such a standard error."""
    if error < _NOTHING:
        return Effect(value, _ends(value, middle, 0.0, math.inf, log, looks), float(abs(middle) < _NOTHING))
    p = min(1.0, looks * 2 * float(special.stdtr(freedom, -abs(middle) / error)))
    return Effect(value, _ends(value, middle, error, freedom, log, looks), p)


def _ends(value: float, middle: float, error: float, freedom: float, log: bool, looks: int) -> Ends | None:
    """The t interval around `middle`, as much wider as it takes to hold the `value` that is shown; None where
    it is beyond all numbers."""
    half = float(special.stdtrit(freedom, 1 - LEVEL / looks / 2)) * error
    with np.errstate(over="ignore"):
        low, high = (float(np.exp(end)) if log else end for end in (middle - half, middle + half))
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    return min(low, value), max(high, value)
