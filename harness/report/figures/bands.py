"""Band plots: latency by load, one colour and marker an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from harness.metrics.percentiles import missing
from harness.report.figures.axes import fit_values, footnote, hollow, key, load_axis, places
from harness.report.figures.sketch import LINE, Sketch
from harness.report.figures.style import INK, Look
from harness.report.figures.svg import Plot
from harness.report.text.load_words import head_of, quantity
from harness.report.text.numbers import decimals, number, several
from harness.schema.load import Load
from harness.schema.metrics import METRICS, latencies
from harness.schema.results import OnlineSummary

_HOW = "p50 to p90 as a band, p90 as a line, p99 as hollow markers"

Summaries = Sequence[OnlineSummary]
Styles = Mapping[str, Look]


@dataclass(frozen=True)
class Line:
    """A percentile of one label over loads: places, values, 95 % intervals, hover texts, invalid points."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    ci: list[tuple[float, float] | None] = field(default_factory=list)
    tips: list[str] = field(default_factory=list)
    invalid: list[tuple[float, float]] = field(default_factory=list)


def band(pooled: Summaries, styles: Styles, metric: str) -> Plot:
    """One metric: band p50 to p90, solid line at p90, hollow markers at p99."""
    sketch = Sketch(styles, _heads(pooled), invalid=_any_invalid(pooled))
    _band(sketch, sketch.axes(), pooled, metric)
    title = f"{METRICS[metric].title} by {quantity(pooled[0].load)}: {_HOW}"
    return sketch.finish(METRICS[metric].short_name, title)


def overview(pooled: Summaries, styles: Styles) -> Plot:
    """The metrics that belong together in one figure, two in a row."""
    names = latencies("overview")
    rows = -(-len(names) // 2)
    sketch = Sketch(styles, _heads(pooled), (9.2, 3.1 * rows), invalid=_any_invalid(pooled))
    grid = sketch.figure.subplots(rows, 2, squeeze=False, gridspec_kw={"wspace": 0.16, "hspace": 0.4})
    for axes, metric in zip_longest(grid.flat, names):
        if metric is None:
            axes.remove()
        else:
            _band(sketch, axes, pooled, metric)
    labels = several(METRICS[name].label for name in names)
    title = f"{labels} by {quantity(pooled[0].load)}: {_HOW}"
    return sketch.finish("overview", title)


def percentile(pooled: Summaries, styles: Styles, metric: str, q: int) -> Plot:
    """One metric at one percentile, with 95 % intervals as whiskers."""
    sketch = Sketch(styles, _heads(pooled), invalid=_any_invalid(pooled))
    axes = sketch.axes()
    at = places(pooled)
    values: list[float] = []
    for offset, (label, look) in _spread(at, styles, among_lines=0.012):
        line = _line(sketch, pooled, label, metric, q, at, offset)
        for x, ci in zip(line.x, line.ci, strict=True):
            if ci is not None:
                sketch.belongs(axes.vlines(x, *ci, color=look.color, linewidth=1, alpha=0.8), label)
                values += ci
        _marks(sketch, axes, line, label, color=look.color, marker=look.marker, linestyle=look.line)
        _cross(sketch, axes, line, label)
        values += line.y
    _frame(axes, at, pooled, values, f"{METRICS[metric].label} p{q}, ms", _size(pooled, metric))
    key(axes, "whiskers: 95 % interval")
    return sketch.finish(
        f"{METRICS[metric].short_name}_p{q}",
        f"{METRICS[metric].title}, p{q} by {quantity(pooled[0].load)} with 95 % intervals",
    )


def _heads(pooled: Summaries) -> tuple[str, ...]:
    load = head_of(summary.load for summary in pooled)
    return ("metric", "engine", load, "statistic", "ms", "ci_low", "ci_high", "n", "valid")


def _band(sketch: Sketch, axes: Axes, pooled: Summaries, metric: str) -> None:
    at = places(pooled)
    values: list[float] = []
    for offset, (label, look) in _spread(at, sketch.styles):
        p50, p90, p99 = (_line(sketch, pooled, label, metric, q, at, offset) for q in (50, 90, 99))
        low = [y for x, y in zip(p50.x, p50.y, strict=True) if x in p90.x]
        filled: Artist
        if len(at) == 1:
            filled = axes.vlines(p90.x, low, p90.y, color=look.color, alpha=0.3, linewidth=9)
        else:
            filled = axes.fill_between(p90.x, low, p90.y, color=look.color, alpha=0.16, linewidth=0)
        sketch.belongs(filled, label)
        _marks(sketch, axes, p50, label, color=look.color, marker="_", linestyle="none", alpha=0.6)
        _marks(sketch, axes, p90, label, color=look.color, marker=look.marker, linestyle=look.line)
        _marks(sketch, axes, p99, label, **hollow(look))
        _cross(sketch, axes, p90, label)
        values += [*low, *p90.y, *p99.y]
    key(axes, "band p50 to p90, line p90, hollow p99")
    _frame(axes, at, pooled, values, f"{METRICS[metric].label}, ms", _size(pooled, metric))


def _marks(sketch: Sketch, axes: Axes, line: Line, label: str, **style: Any) -> None:
    (artist,) = axes.plot(line.x, line.y, **style)
    sketch.points(artist, label, line.tips)


def _cross(sketch: Sketch, axes: Axes, line: Line, label: str) -> None:
    for x, y in line.invalid:
        (artist,) = axes.plot(x, y, "x", color=INK, markersize=8)
        sketch.belongs(artist, label)


def _frame(
    axes: Axes, at: Mapping[Load, float], pooled: Summaries, values: list[float], title: str, note: str
) -> None:
    axes.set_title(title)
    load_axis(axes, at, pooled)
    fit_values(axes, values)
    footnote(axes, note)


def _line(
    sketch: Sketch,
    pooled: Summaries,
    label: str,
    metric: str,
    q: int,
    at: Mapping[Load, float],
    offset: float,
) -> Line:
    """The percentile where the sample supports it; elsewhere there is no point."""
    line = Line()
    for summary in sorted(pooled, key=lambda summary: summary.load):
        found = summary.latency(metric)
        value: float | None = getattr(found, f"p{q}")
        if summary.label != label or value is None or missing(q, found.n):
            continue
        x, ci = at[summary.load] + offset, found.ci.get(f"p{q}")
        line.x.append(x)
        line.y.append(value)
        line.ci.append(ci)
        line.tips.append(_tip(summary, metric, q, value, ci))
        low, high = ci or (None, None)
        sketch.rows.append(
            (metric, label, summary.load.value, f"p{q}", value, low, high, found.n, summary.valid)
        )
        if not summary.valid:
            line.invalid.append((x, value))
    return line


def _tip(summary: OnlineSummary, metric: str, q: int, value: float, ci: tuple[float, float] | None) -> str:
    digits = decimals([value])
    parts = [
        f"{summary.label}, {summary.load}",
        f"{METRICS[metric].label} p{q} {number(value, digits)} ms",
    ]
    if ci is not None:
        parts.append(f"95 % interval {number(ci[0], digits)} to {number(ci[1], digits)}")
    parts.append(f"n = {summary.latency(metric).n:,}")
    return LINE.join(parts if summary.valid else [*parts, "invalid"])


def _spread(
    at: Mapping[Load, float], styles: Styles, among_lines: float = 0.0
) -> list[tuple[float, tuple[str, Look]]]:
    """Each label with its offset along x: side by side at a single load, else a share of the width apart."""
    span = max(at.values()) - min(at.values())
    step = 0.18 if len(at) == 1 else among_lines * span
    middle = (len(styles) - 1) / 2
    return [((position - middle) * step, item) for position, item in enumerate(styles.items())]


def _size(pooled: Summaries, metric: str) -> str:
    sizes = [summary.latency(metric).n for summary in pooled]
    what = f"{METRICS[metric].sample}s"
    low, high = min(sizes), max(sizes)
    return f"n = {low:,} {what} a point" if low == high else f"n = {low:,} to {high:,} {what} a point"


def _any_invalid(pooled: Summaries) -> bool:
    return any(not summary.valid for summary in pooled)
