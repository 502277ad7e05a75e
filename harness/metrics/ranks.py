"""Ranks of a sample."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.metrics.gaps import run_starts


def ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(n,) the rank of each of n finite values, the smallest being 1; equal ones share their mean rank.

    As `pandas.Series.rank`, in a third of its time.
    """
    order = np.argsort(values)
    starts = run_starts(values[order])
    counts = np.diff(starts, append=values.size)
    found = np.empty(values.size)
    found[order] = np.repeat(starts + (counts + 1) / 2, counts)
    return found
