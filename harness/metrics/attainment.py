"""Service levels: the share of requests within limits, and whether each limit holds at a load."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from harness.metrics.error_rate import error_rate_ends
from harness.metrics.estimates import estimates_of
from harness.metrics.independence import Dependence
from harness.metrics.intervals import LEVEL, Ends, Estimate, Measurement, level, wilson
from harness.metrics.rates import NO_TIME_S, flow, requests_within, total
from harness.metrics.samples import Group, Sample, pool
from harness.schema.limits import ERROR_RATE, GateTerm, Slo
from harness.schema.metric import Counts
from harness.schema.metrics import METRICS, latencies


def each_request(terms: Sequence[GateTerm]) -> Slo | None:
    """Limits on percentiles of latencies as limits on each request, the strictest of each; None: none."""
    limits: dict[str, float] = {}
    for term in terms:
        if term.metric in latencies("slo") and term.at_most:
            limits[term.metric] = min(term.limit, limits.get(term.metric, term.limit))
    return Slo.model_validate(limits) if limits else None


def attained(repeats: Sequence[Group], slo: Slo) -> Measurement:
    """The share of an engine's requests at one load that meet every limit; one that failed meets none.

    Of several repeats the interval is Student's over their shares, and at least Wilson's over all requests,
    as shares that are alike have none; of one Wilson's over as many requests as their autocorrelation leaves.
    """
    each = [requests_within(group, slo) for group in repeats]
    share = float(np.concatenate(each).mean())
    if len(each) > 1:
        low, high = _by_requests(each)
        shares = np.array([within.mean() for within in each])
        half = float(stdtrit(len(each) - 1, 1 - LEVEL / 2)) * float(shares.std(ddof=1)) / len(each) ** 0.5
        return Measurement(share, (max(0.0, min(low, share - half)), min(1.0, max(high, share + half))))
    [within] = each
    n = within.size / Dependence(Sample(within, None, np.arange(within.size))).inflation
    return Measurement(share, wilson(share * n, n))


def goodput(repeats: Sequence[Group], slo: Slo) -> Measurement:
    """Requests a second that meet every limit."""
    flows = [flow(group, slo) for group in repeats]
    together, each = total(flows), np.array([passed.per_s(passed.good or 0) for passed in flows])
    found = Estimate(together.per_s(together.good or 0), each)
    ends = level(found) if len(each) > 1 else None
    if ends is None:
        return Measurement(found.value)
    within = [requests_within(group, slo) for group in repeats]
    sent = together.per_s(sum(met.size for met in within))
    low, high = _by_requests(within)
    return Measurement(found.value, (max(0.0, min(ends[0], low * sent)), max(ends[1], high * sent)))


def reached(repeats: Sequence[Group], term: GateTerm) -> Measurement | None:
    """What the limit is on; None: there is none, or its sample is too small. Of one repeat the interval
    assumes how repeats differ."""
    if term.metric == ERROR_RATE:
        every = [(group.whole or group).requests["error"] for group in repeats]
        failed, counts = [int(errors.notna().sum()) for errors in every], [len(errors) for errors in every]
        count = sum(counts)
        return Measurement(sum(failed) / count, error_rate_ends(failed, counts)) if count else None
    if (counted := METRICS[term.metric].counted) is not None:
        found = _rate(repeats, counted)
        return None if found is None else Measurement(found.value, level(found))
    parts = [group.sample(term.metric) for group in repeats]
    if not all(part.size for part in parts):
        return None
    whole = pool(repeats).sample(term.metric) if len(repeats) > 1 else None
    found = estimates_of(parts, whole)[term.statistic]
    return None if found.withheld else Measurement(found.value, level(found))


def rate(repeats: Sequence[Group], name: str) -> Measurement | None:
    """A rate by its name in the registry; None where no time passed. One repeat gives no interval."""
    counted = METRICS[name].counted
    assert counted is not None, name
    found = _rate(repeats, counted)
    return None if found is None else Measurement(found.value, level(found) if found.repeats > 1 else None)


def _rate(repeats: Sequence[Group], counted: Callable[[Counts], int | None]) -> Estimate | None:
    """Counts of all repeats over their summed time."""
    flows = [flow(group, None) for group in repeats]
    counts = [counted(passed) for passed in flows]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or any(passed.seconds <= NO_TIME_S for passed in flows):
        return None
    each = np.array([passed.per_s(count) for passed, count in zip(flows, known, strict=True)])
    return Estimate(total(flows).per_s(sum(known)), each)


def _by_requests(each: Sequence[npt.NDArray[np.float64]]) -> Ends:
    """Wilson's interval of the share of ones."""
    return wilson(sum(float(met.sum()) for met in each), sum(met.size for met in each))
