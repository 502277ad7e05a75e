"""The interval of a share (Wilson, Journal of the American Statistical Association 22, 1927)."""

from __future__ import annotations

from math import sqrt

from scipy.special import ndtri

from harness.metrics.intervals import LEVEL


def wilson(right: float, n: float) -> tuple[float, float]:
    """The 95 % interval of the share of which `right` of `n` were seen; `n` above 0."""
    z = float(ndtri(1 - LEVEL / 2))
    share, spread = right / n, z * sqrt(right / n * (1 - right / n) / n + z * z / (4 * n * n))
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
