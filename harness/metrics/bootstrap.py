"""95 % percentile bootstrap intervals of means and percentiles.

What is drawn again is what was drawn when measuring. A run draws repeats, and each repeat draws requests, so
a resample takes as many repeats with replacement and, in each, as many requests with replacement: the
two-stage bootstrap of Davison and Hinkley (Bootstrap Methods and their Application, 1997, section 3.8), used
for benchmarks by Kalibera and Jones (Quantifying Performance Changes with Effect Size Confidence Intervals,
2012). With one repeat it is the plain bootstrap over requests. All samples of a request (its tokens) stay
together, since they are not independent (cluster bootstrap; Field and Welsh, JRSS B 69, 2007).

Two approximations keep a resample cheap, neither touched by small runs. Beyond `MAX_UNITS` requests, random
groups of requests are drawn instead of requests (Wolter, Introduction to Variance Estimation, chapter 2),
which leaves the expected variance as it is. Beyond `MAX_LEVELS` values, neighbouring values share their mean,
in about as many bins, narrow near the percentiles reported. Point estimates use neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.metrics.samples import Sample
from harness.spec.results import PERCENTILES

RESAMPLES = 1000
CONFIDENCE = 0.95
MAX_UNITS = 512
MAX_LEVELS = 1024

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def _levels() -> Floats:
    """(L,) ascending fractions of a sample at which bins end: even over all, dense around each percentile."""
    near = [q / 100 + np.linspace(-1, 1, 128) * min(q, 100 - q) / 100 for q in PERCENTILES]
    return np.unique(np.clip(np.concatenate([np.linspace(0, 1, 512), *near]), 0, 1))


_LEVELS = _levels()


@dataclass(frozen=True)
class Resampling:
    """B resamples of U requests, as draws of the G units they belong to.

    Attributes:
        unit: (U,) unit of each request, below G.
        draws: (B, G) how often each resample holds each unit.
    """

    unit: Ints
    draws: npt.NDArray[np.float32]

    @classmethod
    def plan(cls, repeat_of: Ints, rng: np.random.Generator) -> Resampling:
        """Resamples for requests of which `repeat_of` (U,) names the repeat."""
        repeats, sizes = np.unique(repeat_of, return_counts=True)
        unit = np.zeros(len(repeat_of), dtype=np.int64)
        if not len(repeats):
            return cls(unit, np.zeros((RESAMPLES, 0), np.float32))
        times = rng.multinomial(len(repeats), np.full(len(repeats), 1 / len(repeats)), RESAMPLES)
        draws = []
        start = 0
        for position, (repeat, size) in enumerate(zip(repeats, sizes, strict=True)):
            units = min(int(size), max(1, MAX_UNITS // len(repeats)))
            unit[repeat_of == repeat] = start + rng.permutation(size) % units
            draws.append(rng.multinomial(times[:, position] * units, np.full(units, 1 / units)))
            start += units
        return cls(unit, np.concatenate(draws, axis=1, dtype=np.float32))

    def replicates(self, sample: Sample, qs: Sequence[float]) -> Floats:
        """(len(qs), B) the percentiles `qs` of `sample` in every resample; NaN where a resample is empty."""
        counts, values = self._cumulative(sample)
        total = counts[:, -1].astype(np.float64)
        result = np.full((len(qs), RESAMPLES), np.nan)
        for row, q in enumerate(qs):
            position = np.maximum(total - 1, 0) * (q / 100)
            below = np.floor(position)
            ranks = np.stack([below, np.ceil(position)]).astype(np.float32)
            at = np.stack([(counts <= rank[:, None]).sum(axis=1) for rank in ranks])
            ends = values[np.minimum(at, len(values) - 1)]
            result[row] = np.where(total > 0, ends[0] + (ends[1] - ends[0]) * (position - below), np.nan)
        return result

    def means(self, sample: Sample) -> Floats:
        """(B,) the mean of `sample` in every resample; NaN where a resample is empty."""
        weights = np.ones(len(sample.values)) if sample.weights is None else sample.weights
        unit, units = self.unit[sample.request], self.draws.shape[1]
        sums = self.draws @ np.bincount(unit, weights * sample.values, units)
        counts = self.draws @ np.bincount(unit, weights, units)
        return np.asarray(np.divide(sums, counts, out=np.full(RESAMPLES, np.nan), where=counts > 0))

    def _cumulative(self, sample: Sample) -> tuple[npt.NDArray[np.float32], Floats]:
        """(B, L) how many samples of each resample are at or below each of L values, and the values."""
        unit = self.unit[sample.request]
        if len(sample.values) <= MAX_LEVELS:
            order = np.argsort(sample.values, kind="stable")
            counts = self.draws[:, unit[order]]
            if sample.weights is not None:
                counts *= sample.weights[order].astype(np.float32)
            return np.cumsum(counts, axis=1), sample.values[order]
        level, values = _bin(sample)
        units = self.draws.shape[1]
        held = np.bincount(unit * len(values) + level, sample.weights, minlength=units * len(values))
        return self.draws @ np.cumsum(held.reshape(units, -1), axis=1, dtype=np.float32), values


def interval(replicates: Floats) -> tuple[float, float] | None:
    """The percentile interval of (B,) replicates; None unless all of them are finite."""
    if not np.all(np.isfinite(replicates)):
        return None
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(replicates, (tail, 100 - tail))
    return float(low), float(high)


def intervals(sample: Sample, resampling: Resampling, qs: Sequence[int]) -> dict[str, tuple[float, float]]:
    """Intervals of the mean and of the percentiles `qs`, by statistic name."""
    replicates = {"mean": resampling.means(sample)}
    replicates |= {f"p{q}": row for q, row in zip(qs, resampling.replicates(sample, qs), strict=True)}
    found = {name: interval(row) for name, row in replicates.items()}
    return {name: ends for name, ends in found.items() if ends is not None}


def _bin(sample: Sample) -> tuple[Ints, Floats]:
    """(S,) bin of each sample, and (L,) the ascending mean of each bin."""
    ascending = np.sort(sample.values)
    edges = np.unique(ascending[np.ceil(_LEVELS * (len(ascending) - 1)).astype(np.int64)])
    level = np.searchsorted(edges, sample.values).astype(np.int64)
    weights = np.ones(len(level)) if sample.weights is None else sample.weights
    means = np.bincount(level, weights * sample.values) / np.bincount(level, weights)
    return level, np.clip(means, np.append(edges[0], edges[:-1]), edges)
