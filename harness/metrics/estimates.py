"""The statistics that engines are compared by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

import numpy as np
from scipy import special

from harness.metrics.independence import Dependence
from harness.metrics.intervals import (
    ASSUMED_OF_LATENCIES,
    LEVEL,
    Ends,
    Estimate,
    bounded,
    order_statistics,
    own,
)
from harness.metrics.percentiles import Ordered, missing, needed
from harness.metrics.primary import RATE
from harness.metrics.rates import NO_TIME_S, flow
from harness.metrics.samples import Group, Sample, pool
from harness.schema.limits import Slo
from harness.schema.load import Batch
from harness.schema.metrics import COMPARED_PERCENTILES, LATENCIES, METRICS, PERCENTILES, latencies, rates
from harness.schema.results import Distribution

#: Metric and statistic, as in the results; a rate is its own statistic.
Key = tuple[str, str]
Estimates = dict[Key, Estimate]

#: What is compared where nothing else is asked for, and what a verdict holds for together.
COMPARED: tuple[Key, ...] = (
    *((metric, f"p{q}") for metric in latencies("compared") for q in COMPARED_PERCENTILES),
    *((rate, rate) for rate in rates("compared")),
)

#: The same of a batch, whose answers nobody waits for one by one.
COMPARED_OF_BATCH: tuple[Key, ...] = ((RATE, RATE),)

#: Latencies that can be asked for: those compared, and those that gates limit.
_ASKED = tuple(dict.fromkeys([*latencies("compared"), *latencies("gated")]))


@dataclass(frozen=True)
class Point:
    """One engine at one load.

    Attributes:
        repeats: its cells.
        pooled: all of them as one.
        each: the latencies of each repeat.
        found: the latencies of all repeats pooled, and the rates.
    """

    repeats: Sequence[Group]
    pooled: Group
    each: Sequence[Estimates]
    found: Estimates


def measure(repeats: Sequence[Group], slo: Slo | None = None) -> Point:
    """Everything that is estimated of one engine at one load, from its repeats."""
    each = [_latencies([group], group, LATENCIES) for group in repeats]
    if len(each) == 1:
        group, together = pool(repeats), each[0]
    else:
        group = pool(repeats)
        together = _latencies(repeats, group, LATENCIES)
    return Point(repeats, group, each, together | (_rates(repeats, slo) if together else {}))


def estimates(repeats: Sequence[Group], slo: Slo | None = None) -> Estimates:
    """Mean and percentiles of every latency that has a sample, and the rates, of one engine at one load.

    Goodput needs a service level. Nothing is estimated where no request succeeded.
    """
    group = repeats[0] if len(repeats) == 1 else pool(repeats)
    found = _latencies(repeats, group, _ASKED)
    return found | (_rates(repeats, slo) if found else {})


def distribution(sample: Sample, found: Mapping[str, Estimate] | None = None) -> Distribution:
    """A sample as mean, percentiles and maximum, with the intervals of the estimates that it supports."""
    if not sample.size:
        return Distribution()
    ends = {name: own(estimate) for name, estimate in (found or {}).items() if not estimate.missing}
    ci = {name: end for name, end in ends.items() if end is not None}
    few = [f"p{q}" for q in PERCENTILES if missing(q, sample.n)]
    return Distribution(
        mean=sample.mean,
        **sample.levels,
        max=sample.most,
        n=sample.n,
        ci=ci,
        withheld=few,
    )


def of_metric(found: Estimates, metric: str) -> dict[str, Estimate]:
    """The statistics of one metric, by name."""
    return {statistic: estimate for (name, statistic), estimate in found.items() if name == metric}


def _latencies(repeats: Sequence[Group], pooled: Group, metrics: Sequence[str]) -> Estimates:
    """Mean and percentiles of every latency that every repeat has a sample of."""
    found: Estimates = {}
    known: dict[Sample, dict[str, Estimate]] = {}
    for metric in metrics:
        whole, parts = pooled.sample(metric), [group.sample(metric) for group in repeats]
        if not all(part.size for part in parts):
            continue
        if whole not in known:
            known[whole] = estimates_of(parts, whole)
        found |= {(metric, name): estimate for name, estimate in known[whole].items()}
    return found


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
    found = {"mean": Estimate(whole.mean, means, _mean_ends(dependences), assumed=assumed["mean"])}
    for q, row in zip(PERCENTILES, levels.T, strict=True):
        worth = [
            dependence.below(float(level), q / 100)
            for dependence, level in zip(dependences, row, strict=True)
        ]
        short = missing(q, int(median(part.n for part in parts)))
        dependent = median(worth) < needed(q)
        within = _order_ends(ordered[0], q / 100, parts[0].n, worth[0]) if len(parts) == 1 else None
        if len(parts) == 1 and within is None:
            short = max(short, ceil(bounded(q / 100) * parts[0].n / worth[0]) - parts[0].n)
        name = f"p{q}"
        found[name] = Estimate(
            whole.levels[name], row, within, short, dependent, assumed[name], missing(q, whole.n)
        )
    return found


def _mean_ends(dependences: Sequence[Dependence]) -> Ends | None:
    """The interval of the mean of one repeat."""
    if len(dependences) > 1 or dependences[0].requests < 2:
        return None
    [dependence] = dependences
    mean = dependence.sample.mean
    half = float(special.stdtrit(dependence.requests - 1, 1 - LEVEL / 2)) * dependence.error_of_mean(mean)
    return max(mean - half, dependence.sample.least), mean + half


def _order_ends(ordered: Ordered, share: float, n: int, independent: float) -> Ends | None:
    """The values between which a percentile of one repeat lies; None where one side has no bound."""
    ranks = order_statistics(share, n, independent)
    if ranks is None:
        return None
    first, last = ordered.at_ranks(ranks)
    return first, last


def _rates(repeats: Sequence[Group], slo: Slo | None) -> Estimates:
    """Counts of all repeats over their summed time."""
    flows = [flow(group, slo) for group in repeats]
    work = tuple(map(_prompts_of, repeats)) if isinstance(repeats[0].load, Batch) else ()
    seconds = np.array([flow.seconds for flow in flows])
    if not np.all(seconds > NO_TIME_S):
        return {}
    found = {}
    for name, metric in METRICS.items():
        if metric.counted is None:
            continue
        counts = [metric.counted(flow) for flow in flows]
        if all(count is not None for count in counts):
            passed = np.array(counts, dtype=np.float64)
            each = passed / seconds
            # Of batches the mean: each repeat has prompts of its own, and no repeat counts for more.
            value = each.mean() if work else passed.sum() / seconds.sum()
            found[name, name] = Estimate(float(value), each, work=work)
    return found


def _prompts_of(batch: Group) -> str:
    """Name the prompts of a batch: those of a repeat are the same for all engines, and no other repeat's."""
    tokens = batch.requests["input_tokens"]
    batches = max(1, len(tokens) // int(batch.load.value))
    return f"repeat {batch.repeat}: {int(tokens.sum()) // batches} tokens"
