"""The ratio of paired measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def ratio_interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """Low end, geometric mean and high end of the 95 % interval of a ratio, by Student's t on the logarithms
    of one for each pair."""
    half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    low, mean, high = np.exp(np.mean(logs) + np.array([-half, 0.0, half]))
    return float(low), float(mean), float(high)
