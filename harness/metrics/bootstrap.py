"""Bootstrap resamples of means and percentiles.

What is drawn again is what was drawn when measuring: of several repeats, whole repeats; of one repeat, its
requests. All samples of a request (its tokens) stay together, since they are not independent (cluster
bootstrap; Field and Welsh, JRSS B 69, 2007). `intervals.py` makes intervals of the resamples.

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

RESAMPLES = 1000
CONFIDENCE = 0.95
MAX_UNITS = 512
MAX_LEVELS = 1024

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Resampling:
    """B resamples of U requests, as draws of the G units they belong to.

    Attributes:
        unit: (U,) unit of each request, below G.
        draws: (B, G) how often each resample holds each unit.
        repeats: R of the requests' repeats.
    """

    unit: Ints
    draws: npt.NDArray[np.float32]
    repeats: int

    @classmethod
    def plan(cls, repeat_of: Ints, rng: np.random.Generator) -> Resampling:
        """Resamples for requests of which `repeat_of` (U,) names the repeat."""
        repeats, unit = np.unique(repeat_of, return_inverse=True)
        units = len(repeats)
        if units == 1:
            units = min(len(unit), MAX_UNITS)
            unit = rng.permutation(len(unit)) % units
        if not units:
            return cls(unit, np.zeros((RESAMPLES, 0), np.float32), 0)
        draws = rng.multinomial(units, np.full(units, 1 / units), RESAMPLES)
        return cls(unit, draws.astype(np.float32), len(repeats))

    def replicates(self, sample: Sample, qs: Sequence[float]) -> Floats:
        """(len(qs), B) the percentiles `qs` of `sample` in every resample; NaN where a resample is empty."""
        counts, values = self._cumulative(sample)
        total = counts[:, -1].astype(np.float64)
        result = np.full((len(qs), RESAMPLES), np.nan)
        for row, q in enumerate(qs):
            position = np.maximum(total - 1, 0) * (q / 100)
            below = np.floor(position)
            ranks = np.stack([below, np.ceil(position)]).astype(np.float32)
            ends = values[np.stack([(counts > rank[:, None]).argmax(axis=1) for rank in ranks])]
            result[row] = np.where(total > 0, ends[0] + (ends[1] - ends[0]) * (position - below), np.nan)
        return result

    def means(self, sample: Sample) -> Floats:
        """(B,) the mean of `sample` in every resample; NaN where a resample is empty."""
        unit, units = self.unit[sample.request], self.draws.shape[1]
        weighted = sample.values if sample.weights is None else sample.weights * sample.values
        held = np.bincount(unit, weighted, units), np.bincount(unit, sample.weights, units)
        sums, counts = (self.draws @ np.column_stack(held)).T
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
        level, values = sample.bins
        units = self.draws.shape[1]
        held = np.bincount(unit * len(values) + level, sample.weights, minlength=units * len(values))
        return self.draws @ np.cumsum(held.reshape(units, -1), axis=1, dtype=np.float32), values
