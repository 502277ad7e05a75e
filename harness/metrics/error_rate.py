"""The interval of the share of requests that fail."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from scipy import special

from harness.metrics.intervals import LEVEL, Ends


def error_rate_ends(failed: Sequence[int], counts: Sequence[int]) -> Ends:
    """The 95 % interval of the share of which `failed` of `counts` requests failed in each repeat.

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
    beyond = np.subtract(failed, np.multiply(counts, k / n))  # failures more than the share of all has
    error = sqrt(repeats / (repeats - 1) * float(beyond @ beyond)) / n
    half = float(special.stdtrit(repeats - 1, 1 - LEVEL / 2)) * error
    return min(low, max(0.0, k / n - half)), max(high, min(1.0, k / n + half))
