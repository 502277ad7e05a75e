"""Service levels: the share of requests within limits, and whether each limit holds at a load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from harness.metrics.estimates import estimates_of
from harness.metrics.independence import Dependence
from harness.metrics.intervals import LEVEL, Ends, Estimate, Measurement, error_rate_ends, level, wilson
from harness.metrics.rates import NO_TIME_S, flow, rate_estimate, requests_within, total
from harness.metrics.samples import Group, Sample, pool
from harness.schema.limits import ERROR_RATE, GateTerm, Slo
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
    """Return the requests a second that meet every limit."""
    metric, flows = METRICS["goodput_req_per_s"], [flow(group, slo) for group in repeats]
    together, each = total(flows), np.array([passed.rate(metric) or 0.0 for passed in flows])
    estimate = Estimate(together.rate(metric) or 0.0, each)
    ends = level(estimate) if len(each) > 1 else None
    if ends is None:
        return Measurement(estimate.value)
    low, high = _by_requests([requests_within(group, slo) for group in repeats])
    sent = together.arrivals / together.seconds if together.seconds > NO_TIME_S else 0.0
    return Measurement(estimate.value, (max(0.0, min(ends[0], low * sent)), max(ends[1], high * sent)))


def reached(repeats: Sequence[Group], term: GateTerm) -> Measurement | None:
    """Return the value that a limit is on; None: there is none, or its sample is too small. Of one repeat the
    interval assumes how repeats differ."""
    if term.metric == ERROR_RATE:
        every = [(group.whole or group).requests["error"] for group in repeats]
        failed, counts = [int(errors.notna().sum()) for errors in every], [len(errors) for errors in every]
        count = sum(counts)
        return Measurement(sum(failed) / count, error_rate_ends(failed, counts)) if count else None
    if not METRICS[term.metric].is_latency:
        estimate = rate_estimate(METRICS[term.metric], [flow(group, None) for group in repeats])
        return None if estimate is None else Measurement(estimate.value, level(estimate))
    parts = [group.sample(term.metric) for group in repeats]
    if not all(part.size for part in parts):
        return None
    whole = pool(repeats).sample(term.metric) if len(repeats) > 1 else None
    estimate = estimates_of(parts, whole)[term.statistic]
    return None if estimate.withheld else Measurement(estimate.value, level(estimate))


def _by_requests(each: Sequence[npt.NDArray[np.float64]]) -> Ends:
    """Wilson's interval of the share of ones."""
    return wilson(sum(float(met.sum()) for met in each), sum(met.size for met in each))
