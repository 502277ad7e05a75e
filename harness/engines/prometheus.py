"""Counters of a server, from its page for Prometheus.

The format is that of https://prometheus.io/docs/instrumenting/exposition_formats/. A series is named as
there: `a:b_seconds`, or with labels that choose among its samples `a:b_seconds{stage="x"}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from harness.engines.server_pages import get
from harness.loadgen.load_plan import Target
from harness.schema.fairness import ReportedMean
from harness.schema.results import PrefixCount, SpeculationCount

METRICS = "/metrics"

Samples = Sequence[Sample]
#: Names of series by quantity.
Series = Mapping[str, str]


def read_page(target: Target) -> str | None:
    """Return the page as it is now; None where the server has none."""
    return get(target, METRICS)


def read_samples(target: Target) -> Samples:
    """Return everything that the page has now; nothing where the server has no such page."""
    return parse_samples(read_page(target) or "")


def parse_samples(page: str) -> Samples:
    """Return everything on a page; nothing where it is not in the format."""
    try:
        return [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    except (ValueError, IndexError):  # the latter where a label has no name
        return []


def series_values(samples: Samples, series: str, end: str = "") -> list[float]:
    """Return the values of a series, whatever labels its samples have besides the series' own.

    Args:
        end: End of the samples' name, after that of the series.
    """
    name, labels = _parse_series(series)
    return [s.value for s in samples if s.name == name + end and labels.items() <= s.labels.items()]


@cache
def _parse_series(text: str) -> tuple[str, dict[str, str]]:
    """Return name and labels of `name{label="value"}`."""
    [sample] = parse_samples(f"{text} 0\n")
    return sample.name, sample.labels


def rise(series: str, before: Samples, after: Samples, end: str = "") -> float:
    """Difference of a counter between two readings, over all its finite samples; `end` as in
    `series_values`."""
    start, stop = (
        math.fsum(filter(math.isfinite, series_values(samples, series, end))) for samples in (before, after)
    )
    return stop - start


def prefix_count(series: Series, caches: Series, before: Samples, after: Samples) -> PrefixCount | None:
    """Count the prompt tokens taken from prefix caches, and those looked up in them, between two readings.

    None if the server does not report both, or if one fell: the server was started again, or another one
    answered. A counter of hits may begin with the first one.

    Args:
        caches: Hits of each cache that is counted apart, all or some of which are among `prefix_hits`.
    """
    hits_series, queries_series = series.get("prefix_hits", ""), series.get("prefix_queries", "")
    if not (hits_series and queries_series and series_values(before, queries_series)):
        return None
    if not all(series_values(after, name) for name in (hits_series, queries_series)):
        return None
    hits, queries = (rise(name, before, after) for name in (hits_series, queries_series))
    by_cache = {cache: rise(name, before, after) for cache, name in caches.items()}
    names = (hits_series, *caches.values(), queries_series)
    if min(hits, queries, *by_cache.values()) < 0:
        return None
    return PrefixCount(
        hits=max(hits, math.fsum(by_cache.values())),
        queries=queries,
        by_cache=by_cache,
        source=f"GET {METRICS}: {', '.join(dict.fromkeys(name.partition('{')[0] for name in names))}",
    )


def speculation_count(prefix: str, before: Samples, after: Samples) -> SpeculationCount | None:
    """Count drafted tokens between two readings, by the counters whose names begin with `prefix`; None where
    nothing was drafted."""
    drafts, drafted, accepted = (
        rise(f"{prefix}_num_{what}_total", before, after)
        for what in ("drafts", "draft_tokens", "accepted_tokens")
    )
    per_position = f"{prefix}_num_accepted_tokens_per_pos_total"
    positions = {s.labels.get("position", "") for s in (*before, *after) if s.name == per_position}
    numbers = sorted((position for position in positions if position.isdecimal()), key=int)
    by_position = [rise(f'{per_position}{{position="{number}"}}', before, after) for number in numbers]
    if drafts <= 0 or min(drafted, accepted, *by_position) < 0:
        return None
    return SpeculationCount(
        steps=drafts,
        tokens_per_step=1 + accepted / drafts,
        accepted=accepted / drafted if drafted else None,
        by_position=[accepted_there / drafts for accepted_there in by_position],
        source=f"GET {METRICS}: {prefix}_num_…",
    )


def histogram_means(before: Samples, after: Samples, histograms: Series) -> dict[str, ReportedMean]:
    """Means of what the histograms of seconds observed between two readings, by metric; a histogram without
    observations is left out."""
    means = {}
    for metric, series in histograms.items():
        sum_s, count = (rise(series, before, after, end) for end in ("_sum", "_count"))
        if count > 0 and sum_s >= 0:
            means[metric] = ReportedMean(mean_ms=1e3 * sum_s / count, n=int(count))
    return means
