"""Arrival times of a rate or a ramp: a renewal process, drawn from a seed of its own.

Gaps of mean 1 are drawn and their sums are taken as expected arrivals: request i is due when the integral of
the rate has reached the sum of the first i gaps. With a constant rate that is a renewal process of that rate;
with Poisson gaps and a rate that moves it is the inhomogeneous Poisson process of that rate (Çinlar,
"Introduction to Stochastic Processes", 1975, chapter 4.7).
"""

from __future__ import annotations

from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.schema.load import Arrivals, Ramp, RequestRate
from harness.schema.setting_types import MAX_REQUESTS
from harness.traces import sampling

#: The stream of the seed; others draw lengths and the order of prompts.
STREAM = 0


def arrival_times(
    load: RequestRate | Ramp, seed: int, n: int = 1, seconds: float = 0.0
) -> NDArray[np.float64]:
    """Draw ascending times in seconds, (k,), the first at 0; the same for the same load and seed.

    A rate has `n`, or as many as last `seconds`, whichever is more. A ramp has those in its own time.

    Raises:
        UsageError: There are more than MAX_REQUESTS.
    """
    if isinstance(load, RequestRate):
        expected = seconds * load.req_per_s
        _check_count(expected, f"{load.req_per_s:g} requests/s for {seconds:g} s")
        sums = _sums(load.arrivals, load.cv, seed, max(n - 1, ceil(expected)), until=expected)
        times: NDArray[np.float64] = sums / load.req_per_s
        return times[: max(n, int(np.searchsorted(times, seconds)) + 1)]
    begin, end, over = load.from_req_per_s, load.to_req_per_s, load.seconds
    whole = (begin + end) / 2 * over
    _check_count(whole, str(load))
    sums = _sums(load.arrivals, load.cv, seed, ceil(whole), until=whole)
    sums = sums[: int(np.searchsorted(sums, whole, side="right"))]
    slope = (end - begin) / over
    # The root of begin·t + slope·t²/2 = sum, without a difference of nearly equal numbers.
    times = 2 * sums / (begin + np.sqrt(np.maximum(0.0, begin**2 + 2 * slope * sums)))
    return times


def _check_count(count: float, what: str) -> None:
    if count > MAX_REQUESTS:
        raise UsageError(
            f"{what} would be {count:,.0f} requests, and a cell may have {MAX_REQUESTS:,}",
            "lower the rate or the time",
        )


def _sums(arrivals: Arrivals, cv: float | None, seed: int, n: int, until: float) -> NDArray[np.float64]:
    """Return 0 and the sums of the first gaps of mean 1: `n` gaps, and as many more as pass `until`."""
    spread = {"poisson": 1.0, "constant": 0.0}.get(arrivals, cv or 0.0)
    count = max(1, n)
    while True:
        # A longer draw from the stream begins with the numbers of a shorter one.
        gaps = np.ones(count) if not spread else sampling.gamma_gaps(count, 1.0, spread, seed, STREAM)
        sums = np.concatenate([[0.0], np.cumsum(gaps)])
        if sums[-1] > until:
            return sums
        count += ceil(until - sums[-1] + 4 * spread * sqrt(until) + 16)
