"""Percentiles by linear interpolation (numpy's default, Hyndman and Fan's type 7), weighted ones included."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.metrics.bootstrap import Resampling
from harness.metrics.intervals import Estimate, own
from harness.metrics.samples import Sample
from harness.spec.results import PERCENTILES, Distribution


def needed(q: float) -> int:
    """The smallest sample in which the q-th percentile is not beyond the largest value: 100 for p99."""
    return math.ceil(round(100 / min(q, 100 - q), 9))


def missing(q: float, n: int) -> int:
    """How many more samples the q-th percentile needs; 0 when n support it."""
    return max(0, needed(q) - n)


def percentiles(
    values: npt.NDArray[np.float64], weights: npt.NDArray[np.int64] | None, qs: Sequence[float]
) -> npt.NDArray[np.float64]:
    """`np.percentile(np.repeat(values, weights), qs)` without the repeat. `values` must not be empty."""
    if weights is None or np.all(weights == 1):
        return np.asarray(np.percentile(values, qs), dtype=np.float64)
    order = np.argsort(values, kind="stable")
    ascending, cumulative = values[order], np.cumsum(weights[order])
    position = (cumulative[-1] - 1) * (np.asarray(qs, dtype=np.float64) / 100)
    below = np.floor(position)
    low = ascending[np.searchsorted(cumulative, below, side="right")]
    high = ascending[np.searchsorted(cumulative, np.ceil(position), side="right")]
    return np.asarray(low + (high - low) * (position - below), dtype=np.float64)


def distribution(sample: Sample, resampling: Resampling | None = None) -> Distribution:
    """A sample as mean, percentiles and maximum, with intervals where a resampling is given.

    A percentile that the sample cannot support (see `needed`) has no interval.
    """
    if not sample.values.size:
        return Distribution()
    n = sample.values.size if sample.weights is None else int(sample.weights.sum())
    levels = percentiles(sample.values, sample.weights, PERCENTILES)
    mean = float(np.average(sample.values, weights=sample.weights))
    values = {f"p{q}": float(level) for q, level in zip(PERCENTILES, levels, strict=True)}
    ci: dict[str, tuple[float, float]] = {}
    if resampling is not None:
        supported = [q for q in PERCENTILES if n >= needed(q)]
        rows = {
            f"p{q}": row for q, row in zip(supported, resampling.replicates(sample, supported), strict=True)
        }
        rows["mean"] = resampling.means(sample)
        found = {k: own(Estimate((values | {"mean": mean})[k], rows[k], resampling.repeats)) for k in rows}
        ci = {name: ends for name, ends in found.items() if ends is not None}
    return Distribution(
        mean=mean,
        **values,
        max=float(sample.values.max()),
        n=n,
        ci=ci,
    )
