"""Band plots: latency by scale, one colour and marker an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from harness.metrics.glossary import GLOSSARY
from harness.metrics.percentiles import missing
from harness.reporting.axes import canvas, fit_values, footnote, hollow, key, legend, places, scale_axis
from harness.reporting.style import INK, Look
from harness.reporting.svg import Plot, draw
from harness.spec.results import Distribution, OnlineSummary

HEADLINE = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")

Summaries = Sequence[OnlineSummary]
Styles = Mapping[str, Look]


@dataclass(frozen=True)
class Line:
    """A percentile of one label over scales: places, values, 95 % intervals, and the invalid points."""

    x: list[float]
    y: list[float]
    ci: list[tuple[float, float] | None]
    invalid: list[tuple[float, float]]


def band(pooled: Summaries, styles: Styles, metric: str) -> Plot:
    """One metric: band p50 to p90, solid line at p90, hollow markers at p99."""
    figure = canvas()
    _band(figure.subplots(), pooled, styles, metric)
    legend(figure, styles, invalid=_any_invalid(pooled))
    title = f"{GLOSSARY[metric].name} by scale: p50 to p90 as a band, p90 as a line, p99 as hollow markers"
    return draw(figure, short(metric), title)


def overview(pooled: Summaries, styles: Styles) -> Plot:
    """The four headline metrics, two by two."""
    figure = canvas((9.2, 6.4))
    for axes, metric in zip(figure.subplots(2, 2).flat, HEADLINE, strict=True):
        _band(axes, pooled, styles, metric)
    legend(figure, styles, invalid=_any_invalid(pooled))
    title = "TTFT, TPOT, ITL and E2E by scale: p50 to p90 as bands, p90 as lines, p99 as hollow markers"
    return draw(figure, "overview", title)


def percentile(pooled: Summaries, styles: Styles, metric: str, q: int) -> Plot:
    """One metric at one percentile, with 95 % intervals as whiskers."""
    figure = canvas()
    axes = figure.subplots()
    at = places([summary.scale for summary in pooled])
    values: list[float] = []
    for offset, (label, look) in _spread(at, styles, among_lines=0.012):
        line = _line(pooled, label, metric, q, at, offset)
        for x, ci in zip(line.x, line.ci, strict=True):
            if ci is not None:
                axes.vlines(x, *ci, color=look.color, linewidth=1, alpha=0.8)
                values += ci
        axes.plot(line.x, line.y, color=look.color, marker=look.marker, linestyle=look.line)
        for x, y in line.invalid:
            axes.plot(x, y, "x", color=INK, markersize=8)
        values += line.y
    _frame(axes, at, values, f"{GLOSSARY[metric].short} p{q}, ms", _size(pooled, metric))
    key(axes, "whiskers: 95 % interval")
    legend(figure, styles, invalid=_any_invalid(pooled))
    title = f"{GLOSSARY[metric].name}, p{q} by scale with 95 % intervals"
    return draw(figure, f"{short(metric)}_p{q}", title)


def short(metric: str) -> str:
    """The metric's part of a file name: `ttft_ms` is `ttft`."""
    return metric.removesuffix("_ms")


def _band(axes: Axes, pooled: Summaries, styles: Styles, metric: str) -> None:
    at = places([summary.scale for summary in pooled])
    values: list[float] = []
    for offset, (label, look) in _spread(at, styles):
        p50, p90, p99 = (_line(pooled, label, metric, q, at, offset) for q in (50, 90, 99))
        low = [y for x, y in zip(p50.x, p50.y, strict=True) if x in p90.x]
        if len(at) == 1:
            axes.vlines(p90.x, low, p90.y, color=look.color, alpha=0.3, linewidth=9)
        else:
            axes.fill_between(p90.x, low, p90.y, color=look.color, alpha=0.16, linewidth=0)
        axes.plot(p90.x, p90.y, color=look.color, marker=look.marker, linestyle=look.line)
        axes.plot(p99.x, p99.y, **hollow(look))
        for x, y in p90.invalid:
            axes.plot(x, y, "x", color=INK, markersize=8)
        values += [*low, *p90.y, *p99.y]
    key(axes, "band p50 to p90, line p90, hollow p99")
    _frame(axes, at, values, f"{GLOSSARY[metric].short}, ms", _size(pooled, metric))


def _frame(axes: Axes, at: Mapping[float, float], values: list[float], title: str, note: str) -> None:
    axes.set_title(title)
    scale_axis(axes, at)
    fit_values(axes, values)
    footnote(axes, note)


def _line(
    pooled: Summaries, label: str, metric: str, q: int, at: Mapping[float, float], offset: float
) -> Line:
    """The percentile where the sample supports it; elsewhere there is no point."""
    line = Line([], [], [], [])
    for summary in sorted(pooled, key=lambda summary: summary.scale):
        found: Distribution = getattr(summary, metric)
        value: float | None = getattr(found, f"p{q}")
        if summary.label != label or value is None or missing(q, found.n):
            continue
        x = at[summary.scale] + offset
        line.x.append(x)
        line.y.append(value)
        line.ci.append(found.ci.get(f"p{q}"))
        if not summary.valid:
            line.invalid.append((x, value))
    return line


def _spread(
    at: Mapping[float, float], styles: Styles, among_lines: float = 0.0
) -> list[tuple[float, tuple[str, Look]]]:
    """Each label with its offset along x: side by side at a single scale, else a share of the width apart."""
    span = max(at.values()) - min(at.values())
    step = 0.18 if len(at) == 1 else among_lines * span
    middle = (len(styles) - 1) / 2
    return [((position - middle) * step, item) for position, item in enumerate(styles.items())]


def _size(pooled: Summaries, metric: str) -> str:
    sizes = [getattr(summary, metric).n for summary in pooled]
    what = {"itl_ms": "tokens", "icl_ms": "chunks"}.get(metric, "requests")
    low, high = min(sizes), max(sizes)
    return f"n = {low:,} {what} a point" if low == high else f"n = {low:,} to {high:,} {what} a point"


def _any_invalid(pooled: Summaries) -> bool:
    return any(not summary.valid for summary in pooled)
