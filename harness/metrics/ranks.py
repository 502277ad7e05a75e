"""Ranks of a sample."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.metrics import on_disk
from harness.metrics.gaps import run_starts
from harness.metrics.long_frames import map_parts, sort


def ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(n,) the rank of each of n finite values, the smallest being 1; equal ones share their mean rank.

    As `pandas.Series.rank`, in a third of its time.
    """
    if values.size > on_disk.HELD_REQUESTS:
        held = sort(values)
        return map_parts(
            lambda v: (np.searchsorted(held, v) + np.searchsorted(held, v, "right") + 1) / 2, values
        )
    order = np.argsort(values)
    starts = run_starts(values[order])
    counts = np.diff(starts, append=values.size)
    found = np.empty(values.size)
    found[order] = np.repeat(starts + (counts + 1) / 2, counts)
    return found
