"""Recovery from a spike: how long after its end TTFT is as it was before it.

As before means: a request's TTFT is at most the 90th percentile of the stage before the spike, and so is the
median of it and the next ones, FOLLOWING in all. A failed request is slower than any.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from harness.metrics.definitions import succeeded
from harness.metrics.intervals import order_statistics
from harness.metrics.samples import Group, scheduled
from harness.schema.load import RateSeries
from harness.schema.results import Recovery

Floats = npt.NDArray[np.float64]

#: Requests whose median must be within the limit, and the share of TTFTs before the spike that are.
FOLLOWING, WITHIN = 5, 0.9


def recoveries(group: Group) -> Iterator[Recovery]:
    """Yield one for each spike: a stage of a higher rate than those before and after it.

    None if over a tenth of the requests before it failed: there is no TTFT to return to.
    """
    whole = group.whole
    if not isinstance(whole.load, RateSeries):
        return
    stages, ends_s = whole.load.stages, whole.load.ends_s
    due = scheduled(whole.requests).to_numpy(np.float64)
    ttft_ms = np.full(due.size, np.inf)
    ttft_ms[succeeded(whole.requests)] = whole.metrics["ttft_ms"].to_numpy(np.float64)
    in_order = np.argsort(due, kind="stable")
    due, ttft_ms = due[in_order], ttft_ms[in_order]
    of_stage = np.searchsorted(ends_s, due, side="right")
    for spike in range(1, len(stages) - 1):
        if stages[spike].req_per_s <= max(stages[spike - 1].req_per_s, stages[spike + 1].req_per_s):
            continue
        before, after = np.sort(ttft_ms[of_stage == spike - 1]), of_stage == spike + 1
        limit = float(np.quantile(before, WITHIN, method="inverted_cdf")) if before.size else np.inf
        if not np.isfinite(limit):
            continue
        since_s = due[after] - ends_s[spike]
        seconds = _last_slow_and_first_recovered(since_s, ttft_ms[after], limit)[1]
        ranks = order_statistics(WITHIN, before.size, before.size)
        ends = None
        if ranks is not None and seconds is not None:
            high_limit, low_limit = float(before[ranks[1] - 1]), float(before[ranks[0] - 1])
            low, _ = _last_slow_and_first_recovered(since_s, ttft_ms[after], high_limit)
            _, high = _last_slow_and_first_recovered(since_s, ttft_ms[after], low_limit)
            ends = None if high is None else (low, high)
        highest = float(np.max(ttft_ms[after | (of_stage == spike)], initial=0.0))
        yield Recovery(
            **group.identity,
            stage=spike,
            before_ms=float(np.median(before)),
            limit_ms=limit,
            highest_ms=highest if np.isfinite(highest) else None,
            seconds=seconds,
            ci=ends,
            stage_s=stages[spike + 1].seconds,
        )


def _last_slow_and_first_recovered(
    since_s: Floats, ttft_ms: Floats, limit: float
) -> tuple[float, float | None]:
    """Return when the last request before recovery was due, and the first that is recovered; None where TTFT
    never recovers."""
    for place in range(len(ttft_ms) - FOLLOWING + 1):
        if ttft_ms[place] <= limit and np.median(ttft_ms[place : place + FOLLOWING]) <= limit:
            return (float(since_s[place - 1]) if place else 0.0), float(since_s[place]) if place else 0.0
    return (float(since_s[-1]) if since_s.size else 0.0), None
