"""Service levels, and the frontier of an engine: its output rate against that of each user, a point a load.

A user's rate is 1 / TPOT at the median. A point that another load of the same engine beats is dominated; the
others are the engine's frontier.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from harness.metrics.estimates import Dependence, estimates_of
from harness.metrics.intervals import LEVEL, Ends, Estimate, Measurement, error_rate_ends, level, wilson
from harness.metrics.rates import count, rate_estimate, requests_within, total
from harness.metrics.samples import Group, Sample, by_unit, pool, units
from harness.schema.limits import ERROR_RATE, GateTerm, Slo
from harness.schema.load import Load
from harness.schema.metric import MS, NO_TIME_S
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

    Several repeats have Student's interval over their shares, widened to Wilson's over all requests, as equal
    shares would give none. One repeat has Wilson's, where requests that depend on each other count as fewer.
    """
    each = [requests_within(group, slo) for group in repeats]
    share = float(np.concatenate(each).mean())
    if len(each) > 1:
        low, high = _by_requests(each)
        shares = np.array([within.mean() for within in each])
        half = float(stdtrit(len(each) - 1, 1 - LEVEL / 2)) * float(shares.std(ddof=1)) / len(each) ** 0.5
        return Measurement(share, (max(0.0, min(low, share - half)), min(1.0, max(high, share + half))))
    [within] = each
    sample = Sample(within, None, np.arange(within.size))
    dependence = Dependence(by_unit(sample, units(repeats[0].requests)))
    n = dependence.below(0.5, 1 - share) if 0 < share < 1 else dependence.requests
    return Measurement(share, wilson(share * n, n))


def goodput(repeats: Sequence[Group], slo: Slo) -> Measurement:
    """Return the requests a second that meet every limit."""
    metric, counts = METRICS["goodput_req_per_s"], [count(group, slo) for group in repeats]
    together, each = total(counts), np.array([metric.rate(passed) or 0.0 for passed in counts])
    estimate = Estimate(metric.rate(together) or 0.0, each)
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
        every = [group.whole.requests["error"] for group in repeats]
        failed, counts = [int(errors.notna().sum()) for errors in every], [len(errors) for errors in every]
        n = sum(counts)
        return Measurement(sum(failed) / n, error_rate_ends(failed, counts)) if n else None
    if not METRICS[term.metric].is_latency:
        estimate = rate_estimate(METRICS[term.metric], [count(group, None) for group in repeats])
        return None if estimate is None else Measurement(estimate.value, level(estimate))
    estimate = _latency(repeats, term.metric, term.statistic)
    return None if estimate is None or estimate.withheld else Measurement(estimate.value, level(estimate))


def _latency(repeats: Sequence[Group], metric: str, statistic: str) -> Estimate | None:
    """Estimate a statistic of a latency; None where a repeat has no sample, or failures leave it no value."""
    parts = [group.sample(metric) for group in repeats]
    if not all(part.size for part in parts):
        return None
    return estimates_of(parts, pool(repeats).sample(metric) if len(repeats) > 1 else None).get(statistic)


def _by_requests(each: Sequence[npt.NDArray[np.float64]]) -> Ends:
    """Wilson's interval of the share of ones."""
    return wilson(sum(float(met.sum()) for met in each), sum(met.size for met in each))


@dataclass(frozen=True)
class Served:
    """One engine at one load.

    Attributes:
        total: output tok/s of each GPU, or of the machine.
        user: output tok/s of one user.
        dominated: another valid load of the engine gives more of one and no less of the other.
        valid: whether all its cells are.
    """

    label: str
    load: Load
    total: Measurement
    user: Measurement
    dominated: bool = False
    valid: bool = True


def served(
    points: Sequence[Sequence[Group]], gpus: Mapping[str, int], invalid: Container[tuple[str, Load]] = ()
) -> list[Served]:
    """Every engine and load that has both rates, in the order given.

    Args:
        points: The repeats of each engine and load.
        gpus: That each engine computed on, by label; 0: the machine is what is counted.
        invalid: Labels and loads that have a cell which is not valid.
    """
    served_points = []
    for repeats in points:
        rate = rate_estimate(METRICS["output_tok_per_s"], [count(group, None) for group in repeats])
        user = _user(repeats)
        if rate is not None and rate.value > 0 and user is not None:
            total = Measurement(rate.value, level(rate) if len(repeats) > 1 else None)
            label, load = repeats[0].label, repeats[0].load
            valid = (label, load) not in invalid
            served_points.append(Served(label, load, total.times(1 / max(1, gpus[label])), user, valid=valid))
    return with_dominated(served_points)


def with_dominated(points: Sequence[Served]) -> list[Served]:
    """The same points, each with whether another one of its engine, which is valid, dominates it."""
    valid = [point for point in points if point.valid]
    return [replace(point, dominated=any(_beats(other, point) for other in valid)) for point in points]


def _user(repeats: Sequence[Group]) -> Measurement | None:
    """Tokens a second of a user; None where answers have one token."""
    tpot = _latency(repeats, "tpot_ms", "p50")
    if tpot is None or tpot.value <= 0:
        return None
    return Measurement(tpot.value, level(tpot) if len(repeats) > 1 else None).under(MS)


def _beats(a: Served, b: Served) -> bool:
    """Tell whether `a` is at least as good in both and better in one; both of one engine."""
    ours, theirs = (a.total.value, a.user.value), (b.total.value, b.user.value)
    return a.label == b.label and ours != theirs and ours[0] >= theirs[0] and ours[1] >= theirs[1]
