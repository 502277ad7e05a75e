"""A chart as SVG: what a page shows without JavaScript, in print, and saves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from harness.plain_text import one_line
from harness.report.charts.chart import Chart, Limit
from harness.report.charts.marks import css_color, few_marks, free_start, series_svg
from harness.report.charts.scale import Scale, fitted
from harness.report.figures.style import INK, MUTED, PAPER, RULE, Look

#: Of one panel; a chart of many engines has several in a row.
WIDTH, HEIGHT, SMALL = 440.0, 270.0, (290.0, 170.0)
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 12.0, 12.0, 42.0
_COLUMNS = 3
_ROW = 26.0
#: Width of a letter of a limit's name.
_LETTER = 6.4


def svg(chart: Chart, looks: Mapping[str, Look], where: str = "") -> Markup:
    """The chart as an element of a page; the same bytes each time.

    Args:
        where: Tells apart charts of the same name in a page.
    """
    if chart.multiples:
        return _multiples(chart, looks, f"{where}-{chart.name}-others")
    height = _TOP + _BOTTOM + _ROW * chart.rows if chart.rows else HEIGHT
    return _element(chart, WIDTH, height, _panel(chart, looks, WIDTH, height))


@pass_context
def drawing(context: Context, chart: Chart) -> Markup:
    """`svg` as the templates call it, in the looks of the chapter that they show."""
    return svg(chart, context["chapter"].styles, context["id"])


def _multiples(chart: Chart, looks: Mapping[str, Look], others: str) -> Markup:
    """A panel an engine, with all of them in grey below it, which are drawn once by the id `others`."""
    width, height = SMALL
    x_scale, y_scale = _scales(chart, width, height)
    grey = "".join(
        series_svg(series, looks[series.label], css_color(RULE), x_scale, y_scale, 0.0)
        for series in chart.shown
    )
    panels = [f'<defs><g id="{others}">{grey}</g></defs>']
    for position, label in enumerate(chart.labels):
        x, y = position % _COLUMNS * width, position // _COLUMNS * (height + 16)
        name = f'<text x="{_LEFT}" y="12" font-weight="600" fill="{css_color(INK)}">{_text(label, 40)}</text>'
        body = _panel(chart, looks, width, height, only=label, below=f'<use href="#{others}"/>')
        panels.append(
            f'<g transform="translate({x:g} {y:g})">{name}<g transform="translate(0 12)">{body}</g></g>'
        )
    rows = -(-len(chart.labels) // _COLUMNS)
    return _element(chart, _COLUMNS * width, rows * (height + 16), "".join(panels))


def _element(chart: Chart, width: float, height: float, body: str) -> Markup:
    return Markup(
        f'<svg role="img" aria-label="{_text(chart.title)}" viewBox="0 0 {width:g} {height:g}"'
        f' font-size="11.5">{body}</svg>'
    )


def _scales(chart: Chart, width: float, height: float) -> tuple[Scale, Scale]:
    y = fitted(chart.y, chart.shown, "y", height - _BOTTOM, _TOP)
    left = min(16 + 6.2 * max((len(one_line(name, 28)) for _, name in y.ticks), default=0), 0.45 * width)
    left = left if chart.y.ticks else max(left, _LEFT)
    return fitted(chart.x, chart.shown, "x", left, width - _RIGHT), y


def _panel(
    chart: Chart, looks: Mapping[str, Look], width: float, height: float, only: str = "", below: str = ""
) -> str:
    """Axes and series, those of the engine `only` where it is given; `below` is drawn before them."""
    x, y = _scales(chart, width, height)
    parts = [_frame(x, y, chart, bool(only)), below]
    shown = [series for series in chart.shown if not only or series.label == only]
    shifts = _shifts(chart, x)
    for series in sorted(shown, key=lambda series: series.kind != "band"):
        color = css_color(series.color or looks[series.label].color)
        drawn = series_svg(series, looks[series.label], color, x, y, shifts.get(series.label, 0.0))
        parts.append(f'<g data-series="{_text(series.label)}">{drawn}</g>')
    marks = [(x(a) + shifts.get(label, 0.0), y(b)) for label, a, b in few_marks(shown)]
    parts += [_limit_name(limit, x, y, marks) for limit in chart.limits]
    return "".join(parts)


def _shifts(chart: Chart, x: Scale) -> dict[str, float]:
    """How far each engine stands from its place, so that marks do not cover each other."""
    if not chart.dodge or chart.multiples:
        return {}
    places = sorted(x(place) for place, _ in x.ticks)
    room = min((b - a for a, b in pairwise(places)), default=x.end - x.start)
    step = min(26.0 if len(places) == 1 else 7.0, 0.7 * room / len(chart.labels))
    middle = (len(chart.labels) - 1) / 2
    return {label: (i - middle) * step for i, label in enumerate(chart.labels)}


def _frame(x: Scale, y: Scale, chart: Chart, small: bool) -> str:
    """Axes, grid, names of ticks, limits."""
    muted, rule = css_color(MUTED), css_color(RULE)
    parts = []
    for value, name in y.ticks:
        down = f"{y(value):.1f}"
        if not chart.y.down:
            parts.append(f'<path d="M{x.start:.1f} {down}H{x.end:.1f}" stroke="{rule}"/>')
        parts.append(
            f'<text x="{x.start - 6:.1f}" y="{down}" dy="0.35em" text-anchor="end" fill="{muted}">'
            f"{_text(name, 28)}</text>"
        )
    bottom, reach = max(y.start, y.end), -math.inf
    for value, name in x.ticks:
        at, half = x(value), 3.3 * len(name)
        if at - half < reach:
            continue
        reach = at + half + 6
        parts.append(
            f'<text x="{at:.1f}" y="{bottom + 16:.1f}" text-anchor="middle" fill="{muted}">'
            f"{_text(name, 28)}</text>"
        )
    parts.append(f'<path d="M{x.start:.1f} {bottom:.1f}H{x.end:.1f}" stroke="{muted}"/>')
    if not small:
        label = f"{chart.x.label}{' (log)' if chart.x.log else ''}"
        parts.append(f'<text x="{x.start:.1f}" y="{bottom + 33:.1f}" fill="{muted}">{_text(label)} →</text>')
        if chart.y.log:
            parts.append(f'<text x="{x.start - 6:.1f}" y="9" text-anchor="end" fill="{muted}">log</text>')
    parts += [_limit(limit, x, y, bottom) for limit in chart.limits]
    return "".join(parts)


def _text(text: str, limit: int = 200) -> str:
    return escape(one_line(text, limit))


def _limit(limit: Limit, x: Scale, y: Scale, bottom: float) -> str:
    """A dotted line; nothing where it is out of sight."""
    at = _limit_at(limit, x, y)
    path = f"M{at} {_TOP}V{bottom:.1f}" if limit.axis == "x" else f"M{x.start:.1f} {at}H{x.end:.1f}"
    return f'<path d="{path}" stroke="{css_color(MUTED)}" stroke-dasharray="2 3" fill="none"/>' if at else ""


def _limit_name(limit: Limit, x: Scale, y: Scale, marks: Sequence[tuple[float, float]]) -> str:
    """What the line is, where it covers no marker, on paper of its own: no line makes it illegible."""
    at, bottom = _limit_at(limit, x, y), max(y.start, y.end)
    if not at:
        return ""
    if limit.axis == "y":
        start = free_start(y(limit.value), _LETTER * len(limit.text), x, marks)
        place = f'x="{start:.1f}" y="{at}" dy="-4"'
    else:
        place = f'x="{at}" y="{bottom - 6:.1f}" dx="4"'
    paint = f'fill="{css_color(MUTED)}" stroke="{css_color(PAPER)}" stroke-width="3" paint-order="stroke"'
    return f"<text {place} {paint}>{_text(limit.text)}</text>"


def _limit_at(limit: Limit, x: Scale, y: Scale) -> str:
    """Where it is along its axis; empty where that is out of sight."""
    scale = x if limit.axis == "x" else y
    return f"{scale(limit.value):.1f}" if scale.low <= limit.value <= scale.high else ""
