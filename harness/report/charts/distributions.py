"""Empirical distribution functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.metrics.percentiles import missing
from harness.metrics.samples import Group
from harness.report.charts.by_load import limits
from harness.report.charts.chart import Axis, Chart, Series, is_wide
from harness.report.charts.scale import values_of
from harness.report.text.load_words import load_file_name
from harness.schema.limits import Slo
from harness.schema.metrics import METRICS

#: Per cent at which a distribution function is drawn: even, and finer at the tail. It begins at p1: the least
#: of many values may be so small that a logarithmic axis would be mostly empty.
LEVELS = np.unique(np.concatenate([np.linspace(1, 100, 100), np.linspace(95, 100, 51)]))
_MARKS = (50, 90, 99)
_TICKS = [(float(share), f"{share} %") for share in (0, 25, 50, 75, 90, 100)]


def ecdf(groups: Sequence[Group], metric: str, slo: Slo | None) -> Chart:
    """The share of requests (or of tokens, or of chunks) at or below each latency, at one load.

    Args:
        groups: One per engine, all at the same load. Markers are at p50, p90 and p99.
    """
    term, load = METRICS[metric], groups[0].load
    series = []
    for group in groups:
        sample = group.sample(metric)
        if not sample.size:
            continue
        n = sample.n
        marks = [q for q in _MARKS if not missing(q, n)]
        found = [float(v) for v in sample.ordered().percentiles([*LEVELS, *marks])]
        curve, at = found[: len(LEVELS)], found[len(LEVELS) :]
        series += [
            Series(group.label, "line", curve, [float(q) for q in LEVELS], markers=False),
            Series(
                group.label, "points", at, [float(q) for q in marks], part="percentile", n=[n] * len(marks)
            ),
        ]
    return Chart(
        name=f"ecdf_{term.short_name}_{load_file_name(load)}",
        title=f"{term.label} of all {term.sample}s at {load}",
        x=Axis(f"{term.label}, {term.unit}", term.unit, log=is_wide(values_of(series, "x"))),
        y=Axis(f"share of {term.sample}s, %", "%", ticks=_TICKS, ends=(0.0, 102.0)),
        series=series,
        note="share at or below; marks at p50, p90, p99",
        limits=limits(slo, metric, "x"),
    )
