"""The statistics that engines are compared by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, isfinite, sqrt
from statistics import median

import numpy as np
import numpy.typing as npt
from scipy import special
from scipy.special import ndtri

from harness.metrics.definitions import run_starts
from harness.metrics.intervals import (
    ASSUMED_OF_LATENCIES,
    LEVEL,
    Ends,
    Estimate,
    bounded,
    order_statistics,
    own_interval,
)
from harness.metrics.percentiles import Ordered, missing, needed, ranks
from harness.metrics.rates import Machines, count, rate_estimate
from harness.metrics.samples import Group, Sample, pool
from harness.schema.limits import Slo
from harness.schema.load import Batch
from harness.schema.metric import Counts
from harness.schema.metrics import COMPARED_PERCENTILES, LATENCIES, METRICS, PERCENTILES, latencies, rates
from harness.schema.results import Distribution

Floats = npt.NDArray[np.float64]

#: An autocorrelation within this many standard errors of 0 is taken as 0 (one-sided 5 %).
_NOISE = 1.645
_MOST = 0.99
#: Of ms: what lies closer together is equal, whatever rounding makes of it.
_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class Dependence:
    """Dependence of the samples of one repeat: the request they belong to, and the requests next to it. Where
    there are sessions, it is theirs or that of requests, whichever is stronger.

    Attributes:
        sample: its requests are numbered in the order in which they were sent.
    """

    sample: Sample

    @cached_property
    def inflation(self) -> float:
        """Factor (1 + ρ) / (1 − ρ), at least 1, by which autocorrelation of requests inflates a variance.

        ρ is the first-order autocorrelation of the normal scores of each request's mean, corrected for its
        bias (Marriott and Pope, Biometrika 41, 1954); the factor is that of a first-order autoregression
        (Bayley and Hammersley, Journal of the Royal Statistical Society supplement 8, 1946).
        """
        means = np.round(self._sums(self.sample.values) / self._counts, _DECIMALS)
        n = means.size
        if n < 3:
            return 1.0
        scores = ndtri((ranks(means) - 0.5) / n)
        power = float(scores @ scores)
        rho = float(scores[1:] @ scores[:-1]) / power if power > 0 else 0.0
        rho += (1 + 3 * rho) / n
        rho = min(rho, _MOST) if rho > _NOISE / sqrt(n) else 0.0
        return (1 + rho) / (1 - rho)

    def below(self, level: float, share: float) -> float:
        """Return the number of independent observations by which a `share` of the sample is at or below
        `level`."""
        n, most = self.sample.n, float(self.sample.n)
        if self._by_request is not None:
            most = self._by_request.below(level, share)
        if self._counts.size == n:
            return min(most, n / self.inflation)
        sums = self._sums(self.sample.values <= level) - share * self._counts
        spread = float(sums @ sums) * self.inflation
        return min(most, share * (1 - share) * n * n / spread) if spread > 0 else most

    def error_of_mean(self, mean: float) -> float:
        """Return the standard error of the sample's mean."""
        sums = self._sums(self.sample.values - mean)
        error = sqrt(float(sums @ sums) * self.inflation) / self.sample.n
        return error if self._by_request is None else max(error, self._by_request.error_of_mean(mean))

    @property
    def requests(self) -> float:
        """Number of independent requests, or sessions."""
        units = self._counts.size / self.inflation
        return units if self._by_request is None else min(units, self._by_request.requests)

    @cached_property
    def _by_request(self) -> Dependence | None:
        """Dependence of the requests of sessions by when they were sent, which may be the stronger one."""
        return None if self.sample.unit is None else Dependence(replace(self.sample, unit=None))

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """Positions in the sample at which the values of each request, or session, begin."""
        return run_starts(self._unit)

    @property
    def _unit(self) -> npt.NDArray[np.integer] | Floats:
        return self.sample.request if self.sample.unit is None else self.sample.unit

    @cached_property
    def _order(self) -> npt.NDArray[np.int64] | None:
        """The order that makes the requests ascend; None where they do."""
        request = self._unit[self._starts]
        return None if np.all(request[1:] >= request[:-1]) else np.argsort(request, kind="stable")

    @cached_property
    def _counts(self) -> Floats:
        """(requests,) samples of each request."""
        return self._sums(np.ones(self.sample.size, dtype=bool))

    def _sums(self, values: npt.NDArray[np.floating] | npt.NDArray[np.bool_]) -> Floats:
        """Return (requests,) the weighted sum of `values` (S,) over the samples of each request."""
        weights = self.sample.weights
        weighted = values if weights is None else values * weights
        sums: Floats = np.add.reduceat(weighted, self._starts, dtype=np.float64)
        return sums if self._order is None else sums[self._order]


#: Metric and statistic, as in the results; a rate is its own statistic.
Key = tuple[str, str]
Estimates = dict[Key, Estimate]

#: Statistics that are compared where nothing else is asked for, and for which a verdict holds together.
COMPARED: tuple[Key, ...] = (
    *((metric, f"p{q}") for metric in latencies("compared") for q in COMPARED_PERCENTILES),
    *((rate, rate) for rate in rates("compared")),
)

#: The same of a batch, whose answers nobody waits for one by one.
COMPARED_OF_BATCH: tuple[Key, ...] = tuple((rate, rate) for rate in rates("headline"))

#: Metrics by which two runs can be compared: those compared in one run, and those that gates limit.
_LATENCIES = tuple(dict.fromkeys([*latencies("compared"), *latencies("gated")]))
_RATES = {*rates("compared"), *rates("gated")}


@dataclass(frozen=True)
class Point:
    """One engine at one load.

    Attributes:
        repeats: its cells.
        pooled: all of them as one.
        counts: sums of each repeat.
        each: the latencies of each repeat.
        estimates: the latencies of all repeats pooled, and the rates.
    """

    repeats: Sequence[Group]
    pooled: Group
    counts: Sequence[Counts]
    each: Sequence[Estimates]
    estimates: Estimates


def measure(
    repeats: Sequence[Group],
    slo: Slo | None = None,
    machines: Machines | None = None,
    gpus: Mapping[str, int] | None = None,
    looks: int = 1,
) -> Point:
    """Estimate everything of one engine at one load, from its repeats.

    Args:
        slo: The service level that a request of the goodput meets.
        machines: Load of the machine during each cell, for costs.
        gpus: GPUs that each engine computes on, by label.
        looks: How often the run may look whether it has enough repeats.
    """
    group = pool(repeats)
    each = [_latencies([repeat], repeat, LATENCIES) for repeat in repeats]
    together = each[0] if len(each) == 1 else _latencies(repeats, group, LATENCIES)
    counts = [count(repeat, slo, machines or {}, gpus or {}) for repeat in repeats]
    pooled = together | (_rates(counts, repeats) if together else {})
    return Point(repeats, group, counts, each, _looked_at(pooled, looks))


def _looked_at(estimates: Estimates, looks: int) -> Estimates:
    return estimates if looks == 1 else {key: replace(each, looks=looks) for key, each in estimates.items()}


def estimates(
    repeats: Sequence[Group], slo: Slo | None = None, machines: Machines | None = None, looks: int = 1
) -> Estimates:
    """Estimate mean and percentiles of every latency that is compared or gated and has a sample, and such
    rates, of one engine at one load.

    Goodput needs a service level. Nothing is estimated where no request succeeded.
    """
    group = repeats[0] if len(repeats) == 1 else pool(repeats)
    compared = _latencies(repeats, group, _LATENCIES)
    if not compared:
        return {}
    by_rate = _rates([count(repeat, slo, machines or {}) for repeat in repeats], repeats)
    by_rate = {key: estimate for key, estimate in by_rate.items() if key[0] in _RATES}
    return _looked_at(compared | by_rate, looks)


def distribution(sample: Sample, found: Mapping[str, Estimate] | None = None) -> Distribution:
    """A sample as mean, percentiles and maximum, with the intervals of the estimates that it supports."""
    if not sample.size:
        return Distribution()
    ends = {name: own_interval(estimate) for name, estimate in (found or {}).items() if not estimate.missing}
    ci = {name: end for name, end in ends.items() if end is not None}
    levels = {name: level if isfinite(level) else None for name, level in sample.levels.items()}
    few = [f"p{q}" for q in PERCENTILES if missing(q, sample.n) or levels[f"p{q}"] is None]
    return Distribution(
        mean=None if sample.censored else sample.mean,
        **levels,
        max=None if sample.censored else float(sample.values.max()),
        n=sample.n,
        censored=sample.censored,
        ci=ci,
        withheld=few,
    )


def of_metric(found: Estimates, metric: str) -> dict[str, Estimate]:
    """The statistics of one metric, by name."""
    return {statistic: estimate for (name, statistic), estimate in found.items() if name == metric}


def _latencies(repeats: Sequence[Group], pooled: Group, metrics: Sequence[str]) -> Estimates:
    """Mean and percentiles of every latency that every repeat has a sample of."""
    by_key: Estimates = {}
    by_sample: dict[Sample, dict[str, Estimate]] = {}
    for metric in metrics:
        whole, parts = pooled.sample(metric), [group.sample(metric) for group in repeats]
        if not all(part.size for part in parts):
            continue
        if whole not in by_sample:
            by_sample[whole] = estimates_of(parts, whole)
        by_key |= {(metric, name): estimate for name, estimate in by_sample[whole].items()}
    return by_key


def estimates_of(parts: Sequence[Sample], whole: Sample | None = None) -> dict[str, Estimate]:
    """The mean and the percentiles of one metric, by name.

    Args:
        parts: its sample in each repeat, none empty.
        whole: all of them pooled; not needed for one repeat.
    """
    whole = whole or parts[0]
    dependences = [Dependence(part) for part in parts]
    ordered = [part.ordered for part in parts]
    levels = np.array([part.percentiles(PERCENTILES, unbiased=True) for part in ordered])
    means = np.array([part.mean for part in parts])
    assumed = ASSUMED_OF_LATENCIES
    by_name = {"mean": Estimate(whole.mean, means, _mean_ends(dependences), assumed=assumed["mean"])}
    if whole.censored:
        del by_name["mean"]
    for q, row in zip(PERCENTILES, levels.T, strict=True):
        if not np.isfinite([*row, whole.levels[f"p{q}"]]).all():
            continue
        worth = [
            dependence.below(float(level), q / 100)
            for dependence, level in zip(dependences, row, strict=True)
        ]
        short = missing(q, int(median(part.n for part in parts)))
        dependent = median(worth) < needed(q)
        within = _order_ends(ordered[0], q / 100, ordered[0].n, worth[0]) if len(parts) == 1 else None
        if len(parts) == 1 and within is None:
            short = max(short, ceil(bounded(q / 100) * parts[0].n / worth[0]) - parts[0].n)
        name = f"p{q}"
        by_name[name] = Estimate(
            whole.levels[name], row, within, short, dependent, assumed[name], missing(q, whole.n)
        )
    return by_name


def _mean_ends(dependences: Sequence[Dependence]) -> Ends | None:
    """The interval of the mean of one repeat."""
    if len(dependences) > 1 or dependences[0].requests < 2:
        return None
    [dependence] = dependences
    mean = dependence.sample.mean
    half = float(special.stdtrit(dependence.requests - 1, 1 - LEVEL / 2)) * dependence.error_of_mean(mean)
    return max(mean - half, float(dependence.sample.values.min())), mean + half


def _order_ends(ordered: Ordered, share: float, n: int, independent: float) -> Ends | None:
    """The values between which a percentile of one repeat lies; None where one side has no bound."""
    ranks = order_statistics(share, n, independent)
    if ranks is None:
        return None
    first, last = ordered.at_ranks(ranks)
    return (first, last) if isfinite(last) else None


def _rates(counts: Sequence[Counts], repeats: Sequence[Group]) -> Estimates:
    """Estimate every rate that is known and has an interval; those of a batch by its prompts."""
    work = tuple(map(_prompts_of, repeats)) if isinstance(repeats[0].load, Batch) else ()
    every = {name: rate_estimate(metric, counts, work) for name, metric in METRICS.items()}
    return {
        (name, name): estimate
        for name, estimate in every.items()
        if estimate is not None and METRICS[name].has_interval
    }


def _prompts_of(batch: Group) -> str:
    """Name the prompts of a batch: those of a repeat are the same for all engines, and no other repeat's."""
    tokens = batch.requests["input_tokens"]
    batches = max(1, len(tokens) // int(batch.load.value))
    return f"repeat {batch.repeat}: {int(tokens.sum()) // batches} tokens"
