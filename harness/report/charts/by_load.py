"""Charts by load: latencies, latency against throughput, distributions of a latency at one load, frontiers,
requests within limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from harness.metrics.attainment import Served
from harness.metrics.intervals import Measurement
from harness.metrics.percentiles import missing, supported
from harness.metrics.samples import Group
from harness.report.charts.chart import UNKNOWN, Axis, Chart, Limit, Point, Series, View, is_wide, values_of
from harness.report.decision import Decision, Within
from harness.report.grouping import grouped
from harness.report.tables.latency import supported_value
from harness.report.text.load_words import (
    axis_label,
    axis_number,
    axis_values,
    head_of,
    load_file_name,
    load_number,
    quantity,
)
from harness.report.text.numbers import decimals, number, span
from harness.schema.limits import Slo
from harness.schema.load import Load
from harness.schema.metric import MS
from harness.schema.metrics import COMPARED_PERCENTILES, METRICS
from harness.schema.results import OnlineSummary, Speculation

_BAND = "p50 to p90"
#: Per cent at which a distribution function is drawn: even, and finer at the tail. It begins at p1: the least
#: of many values may be so small that a logarithmic axis would be mostly empty.
LEVELS = np.unique(np.concatenate([np.linspace(1, 100, 100), np.linspace(95, 100, 51)]))
_MARKS = (50, 90, 99)
_TICKS = [(float(share), f"{share} %") for share in (0, 25, 50, 75, 90, 100)]


def by_load(pooled: Sequence[OnlineSummary], metric: str, slo: Slo | None) -> Chart:
    """One latency at every load: a band from p50 to p90, p90 as a line, p99 as hollow markers; each
    percentile alone with its 95 % intervals.
    """
    term, (axis, at), by = METRICS[metric], load_axis(pooled), quantity(pooled[0].load)
    series = [
        each
        for label, summaries in grouped(pooled, lambda summary: summary.label).items()
        for each in _engine(label, sorted(summaries, key=lambda summary: at[summary.load]), metric, at)
        if len(each.x)
    ]
    parts = {each.part for each in series}
    together = [part for part in (_BAND, "p90", "p99") if part in parts]
    whole = View("p50 to p90, p99", together, marks=("p99",), whiskers=False)
    alone = [View(f"p{q}", [f"p{q}"]) for q in reversed(COMPARED_PERCENTILES) if f"p{q}" in parts]
    return Chart(
        name=term.short_name,
        title=f"{term.label}, {term.unit}, by {by}",
        x=axis,
        y=Axis(f"{term.label}, {term.unit}", term.unit, log=is_wide(values_of(series, "y"))),
        series=series,
        note=f"{_size(pooled, metric)}{_crosses(pooled)}",
        limits=limits(slo, metric, "y"),
        views=[whole, *alone] if "p90" in parts else alone,
        titles={view.name: f"{term.label} {view.name}, {term.unit}, by {by}" for view in alone},
        dodge=True,
    )


def alone(chart: Chart, q: int) -> Chart:
    """The same chart, which shows a percentile by itself at first."""
    first = [view for view in chart.views if view.name == f"p{q}"]
    rest = [view for view in chart.views if view not in first]
    title = chart.titles[f"p{q}"] if first else chart.title
    return replace(chart, name=f"{chart.name}_p{q}", title=title, views=[*first, *rest])


def tradeoff(pooled: Sequence[OnlineSummary], metric: str, slo: Slo | None) -> Chart:
    """The output rate and a latency of each load, joined from light to heavy: p90, or p50 where a sample does
    not support it.
    """
    term = METRICS[metric]
    q = supported((90,), [summary.latency(metric).n for summary in pooled]) or 50
    series = []
    for label, summaries in grouped(pooled, lambda summary: summary.label).items():
        points = [
            Point(s.output_tok_per_s, value, n=s.latency(metric).n, note=str(s.load), valid=s.valid)
            for s in sorted(summaries, key=lambda summary: summary.load.weight)
            if (value := s.value(metric, f"p{q}")) is not None
        ]
        series.append(Series.of(label, "line", points, f"p{q}"))
    return Chart(
        name=f"tradeoff_{term.short_name}",
        title=f"{term.label} p{q}, {term.unit}, by output tokens/s",
        x=Axis("output tokens/s", "tokens/s", log=is_wide(values_of(series, "x"))),
        y=Axis(f"{term.label} p{q}, {term.unit}", term.unit, log=is_wide(values_of(series, "y"))),
        series=series,
        note=f"lower right is better; a point for each load, joined from light to heavy{_crosses(pooled)}",
        limits=limits(slo, metric, "y"),
    )


def acceptance(drafted: Sequence[Speculation], pooled: Sequence[OnlineSummary]) -> Chart | None:
    """TPOT by the tokens of a step, a point an engine and load over its repeats; None without drafts."""
    series = []
    cells = grouped(drafted, lambda cell: (cell.label, str(cell.load)))
    for label, summaries in grouped(pooled, lambda summary: summary.label).items():
        points = []
        for s in sorted(summaries, key=lambda summary: summary.load.weight):
            counts = [cell.count for cell in cells.get((label, str(s.load)), ())]
            steps, tpot_ms = sum(count.steps for count in counts), s.value("tpot_ms", "p50")
            if steps and tpot_ms is not None:
                tokens = sum(count.tokens_per_step * count.steps for count in counts) / steps
                points.append(Point(tokens, tpot_ms, n=s.tpot_ms.n, note=str(s.load), valid=s.valid))
        series += [Series.of(label, "points", points, "p50")] if points else []
    if not series:
        return None
    return Chart(
        name="acceptance",
        title="TPOT p50, ms, by tokens a step of speculative decoding",
        x=Axis("tokens a step", "tokens"),
        y=Axis("TPOT p50, ms", "ms", log=is_wide(values_of(series, "y"))),
        series=series,
        note=f"lower is better; a point for each load, by the engines' counters{_crosses(pooled)}",
    )


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
        values = [float(v) for v in sample.ordered.percentiles([*LEVELS, *marks])]
        at = zip(values[len(LEVELS) :], marks, strict=True)
        points = [Point(value, float(q), n=n) for value, q in at if math.isfinite(value)]
        finite = int(np.isfinite(values[: len(LEVELS)]).sum())  # the others are of failed requests
        series += [
            Series(group.label, "line", values[:finite], LEVELS[:finite].tolist(), markers=False),
            Series.of(group.label, "points", points, "percentile"),
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


def load_axis(pooled: Sequence[OnlineSummary]) -> tuple[Axis, dict[Load, float]]:
    """The axis of loads, and each load's place on it, heavier to the right: logarithmic, or one step each
    where two are too close, which the axis says."""
    values = axis_values(pooled)
    places = [math.log2(value) for value in values.values()]
    scaled = all(b - a >= 0.12 * (places[-1] - places[0]) for a, b in itertools.pairwise(places))
    at = dict(zip(values, places if scaled else map(float, range(len(places))), strict=True))
    ticks = [(place, axis_number(load, values[load])) for load, place in at.items()]
    return Axis(axis_label(next(iter(at))) + ("" if scaled else ", not to scale"), ticks=ticks), at


def limits(slo: Slo | None, metric: str, axis: str) -> list[Limit]:
    """The service level of a latency, where one was set."""
    value = getattr(slo, metric, None)
    return [Limit("y" if axis == "y" else "x", value, f"SLO {value:g}")] if value else []


def _engine(
    label: str, summaries: Sequence[OnlineSummary], metric: str, at: dict[Load, float]
) -> list[Series]:
    """Return the band and the percentiles of an engine, where the sample supports them."""
    band = [
        Point(at[s.load], low, (low, high), valid=s.valid)
        for s in summaries
        if (high := supported_value(s, metric, "p90")) is not None
        and (low := supported_value(s, metric, "p50")) is not None
    ]
    series = [Series.of(label, "band", band, _BAND)]
    for q in COMPARED_PERCENTILES:
        points = []
        for s in summaries:
            latency, value = s.latency(metric), supported_value(s, metric, f"p{q}")
            if value is not None:
                ends = latency.ci.get(f"p{q}", UNKNOWN)
                points.append(Point(at[s.load], value, ends, latency.n, str(s.load), s.valid))
        series.append(Series.of(label, "line", points, f"p{q}"))
    return series


def _crosses(pooled: Sequence[OnlineSummary]) -> str:
    """The meaning of crosses, where there are some."""
    return "; × invalid" if any(not summary.valid for summary in pooled) else ""


def _size(pooled: Sequence[OnlineSummary], metric: str) -> str:
    sizes = [summary.latency(metric).n for summary in pooled]
    return f"n = {span(sizes)} {METRICS[metric].sample}s a point"


# --- Frontiers, and how much of the load is within the limits --------------------------------------------

_SHARE = Axis("Requests within the limits, %", "%", ends=(0.0, 100.0))
_GOODPUT = Axis("Goodput, requests/s", "requests/s")


def decision_charts(decision: Decision, pooled: Sequence[OnlineSummary]) -> list[Chart]:
    """The frontier and, with limits, the requests within them and the goodput by load."""
    charts = [_frontier(decision)] if len(decision.served) > 1 else []
    if decision.slo is not None and len(decision.within) > 1:
        charts += [
            _by_load(decision, pooled, "attainment", _SHARE, _share),
            _by_load(decision, pooled, "goodput", _GOODPUT, lambda point: point.goodput),
        ]
    return [chart for chart in charts if chart.series]


def _frontier(decision: Decision) -> Chart:
    """A line of each engine's valid loads that none of its others beats; the other valid ones are pale."""
    served = [point for point in decision.served if point.valid]
    series = []
    for label, points in grouped(served, lambda point: point.label).items():
        points.sort(key=lambda point: point.user.value)
        best = [_point(decision, point) for point in points if not point.dominated]
        if all(point.total.ci for point in points if not point.dominated):
            band = [point._replace(note="") for point in best]
            series.append(Series.of(label, "band", band, "95 % interval", opacity=0.3))
        names = [load_number(point.load) for point in points if not point.dominated]
        series.append(Series.of(label, "line", best, "frontier", names=names))
        if beaten := [_point(decision, point) for point in points if point.dominated]:
            series.append(Series.of(label, "points", beaten, "dominated", opacity=0.35))
    limits = []
    if decision.slo is not None and (tpot := decision.slo.model_dump(exclude_none=True).get("tpot_ms")):
        limits.append(Limit("x", MS / tpot, f"TPOT {tpot:g} ms"))
    pale = "; pale: another load of the engine is better in both"
    pale = pale if any(point.dominated for point in served) else ""
    return Chart(
        name="frontier",
        title=f"Tok/s per {decision.unit} and per user",
        x=Axis("output tok/s per user (1 / TPOT p50)", "tok/s", log=is_wide(p.user.value for p in served)),
        y=Axis(f"output tok/s per {decision.unit}", "tok/s", log=is_wide(p.total.value for p in served)),
        series=series,
        note=f"upper right is better; numbers: {head_of([point.load for point in served])}{pale}",
        limits=limits,
    )


def _point(decision: Decision, point: Served) -> Point:
    return Point(point.user.value, point.total.value, point.total.ci or UNKNOWN, note=_note(decision, point))


def _note(decision: Decision, point: Served) -> str:
    cost = decision.cost(point)
    if cost is None or decision.hourly is None:
        return str(point.load)
    amount = number(cost.value, decimals([cost.value]))
    return f"{point.load}, {amount} {decision.hourly.currency} per million tokens"


def _by_load(
    decision: Decision,
    pooled: Sequence[OnlineSummary],
    name: str,
    y: Axis,
    value: Callable[[Within], Measurement | None],
) -> Chart:
    axis, at = load_axis(pooled)
    series = []
    for label, points in grouped(decision.within, lambda point: point.label).items():
        measured = [
            Point(at[point.load], number.value, number.ci or UNKNOWN, note=str(point.load), valid=point.valid)
            for point in sorted(points, key=lambda point: point.load.weight)
            if point.load in at and (number := value(point)) is not None
        ]
        if measured:
            series.append(Series.of(label, "line", measured))
    return Chart(
        name=name,
        title=f"{y.label}, by {quantity(pooled[0].load)}",
        x=axis,
        y=y,
        series=series,
        note="95 % intervals; × invalid",
        dodge=True,
    )


def _share(point: Within) -> Measurement | None:
    return None if point.attained is None else point.attained.times(100.0)
