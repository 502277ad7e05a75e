"""Frontiers, and how much of the load is within the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.metrics.attainment import Served
from harness.metrics.intervals import Measurement
from harness.report.charts.by_load import load_axis
from harness.report.charts.chart import UNKNOWN, Axis, Chart, Limit, Point, Series, by_label, is_wide
from harness.report.decision import Decision, Within
from harness.report.text.load_words import quantity
from harness.report.text.numbers import decimals, number
from harness.schema.metric import MS
from harness.schema.results import OnlineSummary

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
    for label, points in by_label(served).items():
        points.sort(key=lambda point: point.user.value)
        best = [_point(decision, point) for point in points if not point.dominated]
        if all(point.total.ci for point in points if not point.dominated):
            band = [point._replace(note="") for point in best]
            series.append(Series.of(label, "band", band, "95 % interval", opacity=0.3))
        series.append(Series.of(label, "line", best, "frontier"))
        if beaten := [_point(decision, point) for point in points if point.dominated]:
            series.append(Series.of(label, "points", beaten, "dominated", opacity=0.35))
    limits = []
    if decision.slo is not None and (tpot := decision.slo.model_dump(exclude_none=True).get("tpot_ms")):
        limits.append(Limit("x", MS / tpot, f"TPOT {tpot:g} ms"))
    return Chart(
        name="frontier",
        title=f"Output tok/s per {decision.unit} against output tok/s per user",
        x=Axis("output tok/s per user (1 / TPOT p50)", "tok/s", log=is_wide(p.user.value for p in served)),
        y=Axis(f"output tok/s per {decision.unit}", "tok/s", log=is_wide(p.total.value for p in served)),
        series=series,
        note="upper right is better; pale: another load of the engine is better in both",
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
    for label, points in by_label(decision.within).items():
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
