"""Frontiers, and how much of the load is within the limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from harness.metrics.attainment import Served
from harness.metrics.intervals import Measurement
from harness.report.charts.by_load import load_axis
from harness.report.charts.chart import Axis, Chart, Limit, Series, is_wide
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
    for label in dict.fromkeys(point.label for point in served):
        points = sorted(
            (point for point in served if point.label == label), key=lambda point: point.user.value
        )
        best = [point for point in points if not point.dominated]
        if all(point.total.ci for point in best):
            series.append(_points(decision, label, best, "band"))
        series.append(_points(decision, label, best, "line"))
        if beaten := [point for point in points if point.dominated]:
            series.append(_points(decision, label, beaten, "points"))
    limits = []
    if decision.slo is not None and (tpot := decision.slo.model_dump(exclude_none=True).get("tpot_ms")):
        limits.append(Limit("x", MS / tpot, f"TPOT {tpot:g} ms"))
    return Chart(
        name="frontier",
        title=f"Output tok/s per {decision.unit} against output tok/s per user",
        x=Axis(
            "output tok/s per user (1 / TPOT p50)",
            "tok/s",
            log=is_wide([point.user.value for point in served]),
        ),
        y=Axis(
            f"output tok/s per {decision.unit}",
            "tok/s",
            log=is_wide([point.total.value for point in served]),
        ),
        series=series,
        note="upper right is better; pale: another load of the engine is better in both",
        limits=limits,
    )


def _points(decision: Decision, label: str, points: Sequence[Served], kind: str) -> Series:
    x, y = [point.user.value for point in points], [point.total.value for point in points]
    low, high = _ends([point.total for point in points])
    if kind == "band":
        return Series(label, "band", x, y, part="95 % interval", low=low, high=high, opacity=0.3)
    notes = [_note(decision, point) for point in points]
    if kind == "line":
        return Series(label, "line", x, y, part="frontier", low=low, high=high, notes=notes)
    return Series(label, "points", x, y, part="dominated", low=low, high=high, notes=notes, opacity=0.35)


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
    for label in dict.fromkeys(point.label for point in decision.within):
        points = sorted(
            (point for point in decision.within if point.label == label), key=lambda point: point.load.weight
        )
        pairs = [(point, value(point)) for point in points if point.load in at]
        measured = [(point, number) for point, number in pairs if number is not None]
        low, high = _ends([number for _, number in measured])
        series.append(
            Series(
                label,
                "line",
                [at[point.load] for point, _ in measured],
                [number.value for _, number in measured],
                low=low,
                high=high,
                notes=[str(point.load) for point, _ in measured],
                invalid=[i for i, (point, _) in enumerate(measured) if not point.valid],
            )
        )
    return Chart(
        name=name,
        title=f"{y.label}, by {quantity(pooled[0].load)}",
        x=axis,
        y=y,
        series=[point for point in series if len(point.x)],
        note="95 % intervals; × invalid",
        dodge=True,
    )


def _share(point: Within) -> Measurement | None:
    return None if point.attained is None else point.attained.times(100.0)


def _ends(points: Sequence[Measurement]) -> tuple[list[float], list[float]]:
    pairs = [point.ci or (math.nan, math.nan) for point in points]
    return [low for low, _ in pairs], [high for _, high in pairs]
