"""Percentiles by linear interpolation (numpy's default, Hyndman and Fan's type 7), weighted ones included."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


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
    order = np.argsort(values)
    ascending, cumulative = values[order], np.cumsum(weights[order])
    position = (cumulative[-1] - 1) * (np.asarray(qs, dtype=np.float64) / 100)
    below = np.floor(position)
    low = ascending[np.searchsorted(cumulative, below, side="right")]
    high = ascending[np.searchsorted(cumulative, np.ceil(position), side="right")]
    return np.asarray(low + (high - low) * (position - below), dtype=np.float64)
