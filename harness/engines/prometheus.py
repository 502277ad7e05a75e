"""Counters of a server, from its page for Prometheus.

The format is that of https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from harness.engines.server_pages import get
from harness.loadgen.load_plan import Target
from harness.schema.fairness import ReportedMean
from harness.schema.results import PrefixCount

METRICS = "/metrics"

Samples = Sequence[Sample]


def read_page(target: Target) -> str | None:
    """The page as it is now; None where the server has none."""
    return get(target, METRICS)


def read_samples(target: Target) -> Samples:
    """Everything that the page has now; nothing where the server has no such page."""
    return parse_samples(read_page(target) or "")


def parse_samples(page: str) -> Samples:
    """Everything on a page; nothing where it is not in the format."""
    try:
        return [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    except (ValueError, IndexError):  # the latter where a label has no name
        return []


def rise(name: str, before: Samples, after: Samples, **labels: str) -> float:
    """Difference of a counter between two readings, over all its finite series with these labels."""
    start, end = (
        math.fsum(
            s.value
            for s in samples
            if s.name == name and labels.items() <= s.labels.items() and math.isfinite(s.value)
        )
        for samples in (before, after)
    )
    return end - start


@dataclass(frozen=True)
class PrefixCounters:
    """Names of two counters: prompt tokens taken from the prefix cache, and prompt tokens looked up in it."""

    hits: str
    queries: str

    def count(self, before: Samples, after: Samples) -> PrefixCount | None:
        """Sum the rises of both over all series; None if the server does not report them, or if one fell: the
        server was started again, or another one answered."""
        rises = []
        for name in (self.hits, self.queries):
            start, end = (
                [sample.value for sample in samples if sample.name == name] for samples in (before, after)
            )
            if not (start and end):
                return None
            rises.append(math.fsum(end) - math.fsum(start))
        if not all(0 <= rise < math.inf for rise in rises):
            return None
        return PrefixCount(
            hits=rises[0], queries=rises[1], source=f"GET {METRICS}: {self.hits}, {self.queries}"
        )


@dataclass(frozen=True)
class Histogram:
    """Sum and count of a histogram of seconds at one moment, over all series with the wanted labels."""

    sum_s: float = 0.0
    count: float = 0.0


def histograms(samples: Samples, series_by_metric: Mapping[str, str]) -> dict[str, Histogram]:
    """Histograms by metric, without those that are not there.

    Args:
        series_by_metric: for each metric a name, with labels that choose among its series, like
            `a:b_seconds{stage="x"}`.
    """
    by_metric = {}
    for metric, series in series_by_metric.items():
        values = {end: series_values(samples, series, end) for end in ("_sum", "_count")}
        if values["_count"]:
            by_metric[metric] = Histogram(math.fsum(values["_sum"]), math.fsum(values["_count"]))
    return by_metric


def series_values(samples: Samples, series: str, end: str = "") -> list[float]:
    """Values of the samples called `series`, such as `a:b{stage="x"}`, whatever else their labels are.

    Args:
        end: Of the samples' name, after that of the series.
    """
    name, labels = _series(series)
    return [
        sample.value
        for sample in samples
        if sample.name == name + end and labels.items() <= sample.labels.items()
    ]


@cache
def _series(text: str) -> tuple[str, dict[str, str]]:
    """Name and labels of `name{label="value"}`."""
    [sample] = parse_samples(f"{text} 0\n")
    return sample.name, sample.labels


def mean_between(before: Mapping[str, Histogram], after: Mapping[str, Histogram]) -> dict[str, ReportedMean]:
    """Means of the observations between two moments; a histogram without observations is left out."""
    means = {}
    for metric, end in after.items():
        start = before.get(metric, Histogram())
        count = end.count - start.count
        if count > 0 and end.sum_s >= start.sum_s:
            means[metric] = ReportedMean(mean_ms=1e3 * (end.sum_s - start.sum_s) / count, n=int(count))
    return means
