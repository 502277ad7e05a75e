"""Intervals and p-values of one statistic, and of two engines' ratio and difference in it.

With several repeats the repeat is the unit: what differs between server starts, and between minutes of a
machine, is not in the requests of one repeat. Whole repeats are resampled; requests inside them are not,
since a second stage counts their spread twice (Davison and Hinkley, Bootstrap Methods and their
Application, 1997, section 3.8). The variance over resamples of R repeats is (R − 1) / R of the true one,
and the percentiles of so few resamples are far too narrow, so the bootstrap gives the standard error, times
√(R / (R − 1)), and Student's t with R − 1 degrees of freedom the quantile (Hesterberg, What Teachers Should
Know about the Bootstrap, The American Statistician 69, 2015). Two engines are compared by Welch's t
(Biometrika 34, 1947), their ratio on the logarithm. `benchmarks/interval_coverage.py` measures how often
these intervals hold the truth.

One repeat shows nothing of how repeats differ. One engine's interval is then the percentile bootstrap over
its requests and speaks of that repeat alone; a comparison assumes that repeats differ by `ASSUMED_SPREAD`,
so that it claims what is plain and nothing finer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from harness.metrics.bootstrap import CONFIDENCE, Floats

LEVEL = 1 - CONFIDENCE

#: Relative standard deviation from repeat to repeat, where there is only one to see.
ASSUMED_SPREAD = 0.1

#: An error this small is rounding: repeats that are exactly alike.
_NOTHING = 1e-12

Ends = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A statistic of one engine at one load, all repeats pooled.

    Attributes:
        value: of the whole sample.
        replicates: (B,) of its resamples, over repeats or, of one repeat, over requests. None for a rate of
            one repeat, and where the sample does not support the statistic.
        repeats: how many were pooled.
        missing: requests or tokens that the sample lacks to support it; 0 where it does.
    """

    value: float
    replicates: Floats | None
    repeats: int
    missing: int = 0

    @property
    def has_log(self) -> bool:
        """Whether it and all its resamples are positive."""
        return self.value > 0 and (self.replicates is None or bool(np.all(self.replicates > 0)))

    def spread(self, log: bool) -> float | None:
        """Standard deviation from repeat to repeat, of the logarithm or plain; None where it was not seen."""
        if self.replicates is None or self.repeats < 2:
            return None
        return _deviation(self.replicates, log) * self.repeats / math.sqrt(self.repeats - 1)

    def error(self, log: bool) -> tuple[float, float]:
        """Standard error, of the logarithm or plain, and its degrees of freedom."""
        spread = self.spread(log)
        if spread is not None:
            return spread / math.sqrt(self.repeats), self.repeats - 1
        assumed = ASSUMED_SPREAD * (1 if log else abs(self.value))
        within = 0.0 if self.replicates is None else _deviation(self.replicates, log)
        return math.hypot(assumed, within), math.inf


@dataclass(frozen=True)
class Effect:
    """How far apart two engines are: the value, its 95 % interval, the two-sided p-value of none."""

    value: float
    ci: Ends | None = None
    p: float | None = None


def own(estimate: Estimate) -> Ends | None:
    """The 95 % interval of one engine's statistic: of several repeats by t, of one over its requests."""
    if estimate.repeats >= 2 or estimate.replicates is None:
        return level(estimate) if estimate.repeats >= 2 else None
    if not np.all(np.isfinite(estimate.replicates)):
        return None
    low, high = np.percentile(estimate.replicates, (50 * LEVEL, 100 - 50 * LEVEL))
    return float(low), float(high)


def level(estimate: Estimate) -> Ends | None:
    """The 95 % interval of what further repeats would give, on the logarithm where that exists."""
    if estimate.missing or not _finite(estimate):
        return None
    log = estimate.has_log
    return _ends(math.log(estimate.value) if log else estimate.value, *estimate.error(log), log)


def ratio(a: Estimate, b: Estimate) -> Effect:
    """`a / b`; `b` is not 0."""
    value = a.value / b.value
    return _welch(value, a, b, log=True) if a.has_log and b.has_log else Effect(value)


def difference(a: Estimate, b: Estimate) -> Effect:
    """`a − b`, in the statistic's own unit."""
    return _welch(a.value - b.value, a, b, log=False)


def _welch(value: float, a: Estimate, b: Estimate, log: bool) -> Effect:
    if a.missing or b.missing or not (_finite(a) and _finite(b)):
        return Effect(value)
    (of_a, freedom_a), (of_b, freedom_b) = a.error(log), b.error(log)
    middle, error = math.log(value) if log else value, math.hypot(of_a, of_b)
    if error < _NOTHING:
        return Effect(value, (value, value), float(abs(middle) < _NOTHING))
    uncertain = of_a**4 / freedom_a + of_b**4 / freedom_b
    freedom = error**4 / uncertain if uncertain else math.inf
    p = 2 * float(special.stdtr(freedom, -abs(middle) / error))
    return Effect(value, _ends(middle, error, freedom, log), p)


def _ends(middle: float, error: float, freedom: float, log: bool) -> Ends | None:
    """The t interval; None where it is beyond all numbers."""
    half = float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error
    with np.errstate(over="ignore"):
        low, high = (float(np.exp(end)) if log else end for end in (middle - half, middle + half))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _finite(estimate: Estimate) -> bool:
    return estimate.replicates is None or bool(np.all(np.isfinite(estimate.replicates)))


def _deviation(replicates: Floats, log: bool) -> float:
    return float(np.std(np.log(replicates) if log else replicates))
