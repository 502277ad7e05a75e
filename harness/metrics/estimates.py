"""The statistics that engines are compared by."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.metrics.bootstrap import RESAMPLES, Resampling
from harness.metrics.intervals import Estimate, own
from harness.metrics.percentiles import missing
from harness.metrics.rates import NO_TIME_S, flow
from harness.metrics.samples import Group, Sample, pool
from harness.schema.load import TraceLoad, load_text
from harness.schema.metrics import COMPARED_PERCENTILES, LATENCIES, METRICS, PERCENTILES, latencies, rates
from harness.schema.results import Distribution
from harness.schema.settings import Slo

#: Metric and statistic, as in the results; a rate is its own statistic.
Key = tuple[str, str]
Estimates = dict[Key, Estimate]

#: What is compared where nothing else is asked for, and what a verdict holds for together.
COMPARED: tuple[Key, ...] = (
    *((metric, f"p{q}") for metric in latencies("compared") for q in COMPARED_PERCENTILES),
    *((rate, rate) for rate in rates("compared")),
)

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


def measure(repeats: Sequence[Group], slo: Slo | None = None, seed: int = 0) -> Point:
    """Everything that is estimated of one engine at one load, from its repeats."""
    group = pool(repeats)
    each = [_latencies(one, LATENCIES, seed) for one in repeats]
    together = each[0] if len(each) == 1 else _latencies(group, LATENCIES, seed)
    return Point(repeats, group, each, together | (_rates(repeats, slo, seed) if together else {}))


def estimates(repeats: Sequence[Group], slo: Slo | None = None, seed: int = 0) -> Estimates:
    """Mean and percentiles of every latency that has a sample, and the rates, of one engine at one load.

    Goodput needs a service level. Nothing is estimated where no request succeeded.
    """
    group = repeats[0] if len(repeats) == 1 else pool(repeats)
    found = _latencies(group, _ASKED, seed)
    return found | (_rates(repeats, slo, seed) if found else {})


def distribution(sample: Sample, found: Mapping[str, Estimate] | None = None) -> Distribution:
    """A sample as mean, percentiles and maximum, with the intervals of the estimates that it supports."""
    if not sample.values.size:
        return Distribution()
    ends = {name: own(one) for name, one in (found or {}).items() if not one.missing}
    ci = {name: end for name, end in ends.items() if end is not None}
    return Distribution(mean=sample.mean, **sample.levels, max=float(sample.values.max()), n=sample.n, ci=ci)


def of_metric(found: Estimates, metric: str) -> dict[str, Estimate]:
    """The statistics of one metric, by name."""
    return {statistic: one for (name, statistic), one in found.items() if name == metric}


def generator(seed: int, group: Group) -> np.random.Generator:
    """A random stream of this engine, load and repeat: no two resamples move together.

    A trace's load is named by its scale.
    """
    load = repr(group.load.scale) if isinstance(group.load, TraceLoad) else load_text(group.load)
    name = f"{group.label}\n{load}\n{group.repeat}"
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _latencies(group: Group, metrics: Sequence[str], seed: int) -> Estimates:
    """Mean and percentiles of every latency that has a sample."""
    resampling = Resampling.plan(group.repeat_of, generator(seed, group))
    samples = {metric: group.sample(metric) for metric in metrics}
    found = {one: _statistics(one, resampling) for one in dict.fromkeys(samples.values()) if one.values.size}
    return {
        (metric, name): estimate
        for metric, sample in samples.items()
        for name, estimate in found.get(sample, {}).items()
    }


def _statistics(sample: Sample, resampling: Resampling) -> dict[str, Estimate]:
    repeats, rows = resampling.repeats, resampling.replicates(sample, PERCENTILES)
    found = {"mean": Estimate(sample.mean, resampling.means(sample), repeats)}
    for q, row in zip(PERCENTILES, rows, strict=True):
        found[f"p{q}"] = Estimate(sample.levels[f"p{q}"], row, repeats, missing(q, sample.n))
    return found


def _rates(repeats: Sequence[Group], slo: Slo | None, seed: int) -> Estimates:
    """Counts of all repeats over their summed time; repeats are resampled."""
    flows = [flow(group, slo) for group in repeats]
    draws = generator(seed, pool(repeats)).multinomial(
        len(flows), np.full(len(flows), 1 / len(flows)), RESAMPLES
    )
    seconds = np.array([one.seconds for one in flows])
    if not np.all(seconds > NO_TIME_S):
        return {}
    found = {}
    for name, metric in METRICS.items():
        if metric.counted is None:
            continue
        counts = [metric.counted(one) for one in flows]
        if any(count is None for count in counts):
            continue
        passed = np.array(counts, dtype=np.float64)
        replicates = (draws @ passed) / (draws @ seconds) if len(flows) > 1 else None
        found[name, name] = Estimate(float(passed.sum() / seconds.sum()), replicates, len(flows))
    return found
