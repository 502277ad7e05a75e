"""The figures of a run as files, for papers and slides: its charts drawn by matplotlib, as SVG and PNG.

SVG has real text and the same bytes each time."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from harness.plain_text import one_line
from harness.report.charts.by_load import alone
from harness.report.charts.chart import Axis, Chart, Series, values_of
from harness.report.charts.looks import INK, MUTED, PAPER, RULE, Look, looks
from harness.report.charts.run_charts import Charts
from harness.report.text.heading import machine, model
from harness.report.text.load_words import load_file_name
from harness.runs.reader import Run
from harness.schema.metrics import METRICS

_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
#: Pixels across a PNG: a slide's.
_PNG_WIDTH = 1600


#: Percentiles that have a figure of their own.
_ALONE = (90, 99)
#: Of a panel, of each of many panels, and of a row, in inches.
_PANEL, _SMALL, _ROW = (4.6, 2.83), (2.9, 2.03), 0.34
_LEFT, _RIGHT, _TOP, _BOTTOM, _BESIDE, _BELOW = 0.62, 0.16, 0.3, 0.63, 0.75, 0.88
_LEGEND_LINE, _LEGEND_GAP = 0.19, 0.08
#: Width of a bold letter, of its size.
_BOLD = 0.63
_NOTE_SIZE, _TITLE_SIZE = 6, 9
#: Above the axes, in points: the title, and where the label of a limit is below it.
_PAD, _PAD_LIMIT = 8, 12

#: The name of a limit along each axis stands beyond the end of its line, where it covers no mark.
_LIMIT_NAME: dict[str, dict[str, Any]] = {
    "x": {"xytext": (-2, 2), "ha": "right"},
    "y": {"xytext": (2, 0), "ha": "left", "va": "center", "rotation": 90},
}

#: A chart, and the engine that a panel is about where each has one.
_Panel = tuple[Chart, str]


#: Settings of matplotlib: the style file, and the colours of the page.
MATPLOTLIB = mpl.rc_params_from_file(Path(__file__).with_suffix(".mplstyle"), use_default_template=False)
MATPLOTLIB.update(dict.fromkeys(("text.color", "axes.titlecolor"), INK))
MATPLOTLIB.update(dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), MUTED))
MATPLOTLIB.update(dict.fromkeys(("axes.facecolor", "figure.facecolor"), PAPER))
MATPLOTLIB.update(dict.fromkeys(("grid.color",), RULE))


@dataclass(frozen=True)
class Plot:
    """A drawn figure: its file name without suffix, an SVG document, its numbers as CSV."""

    name: str
    svg: str
    data: str
    figure: Figure = field(repr=False, compare=False)

    def png(self) -> bytes:
        """The figure in pixels, as wide as a slide."""
        buffer, dpi = io.BytesIO(), _PNG_WIDTH / self.figure.get_figwidth()
        with mpl.rc_context(MATPLOTLIB), _quiet():
            self.figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
        return buffer.getvalue()


def figures(run: Run, charts: Charts) -> Iterator[Plot]:
    """Draw every chart of the run, each percentile of interest by itself, and the overview."""
    styles, figures_by_name = looks(run.engines), dict[str, list[Chart]]()
    together = [chart for metric, chart in charts.by_load.items() if "overview" in METRICS[metric].uses]
    if together:
        figures_by_name["overview"] = together
    for chart in charts.by_load.values():
        # of a percentile that samples do not support, those that they do
        for shown in (chart, *(alone(chart, q) for q in _ALONE)):
            figures_by_name[shown.name] = [shown]
    for load, over_time in charts.over_time.items():
        figures_by_name[f"timeline_{load_file_name(load)}"] = over_time
    in_timelines = {chart.name for over_time in charts.over_time.values() for chart in over_time}
    for name, chart in charts.every.items():
        if name not in in_timelines:
            figures_by_name.setdefault(name, [chart])
    for name, shown_together in figures_by_name.items():
        yield plot(name, shown_together, styles, footer(run))


def footer(run: Run) -> str:
    """Return what a figure without its report has to say: model, hardware, day and tool."""
    hardware = one_line(machine(run.meta).partition(",")[0], 26)
    return " · ".join(
        filter(None, (one_line(model(run.meta), 44), hardware, run.meta.created[:10], "rosebench"))
    )


# --- One figure -----------------------------------------------------------------------------------------


def plot(name: str, charts: Sequence[Chart], looks: Mapping[str, Look], footer: str = "") -> Plot:
    """Charts in one figure, with one legend and one footer.

    Args:
        name: Of its files, without suffix.
    """
    panels: list[_Panel] = []
    for chart in charts:
        panels += [(chart, label) for label in chart.labels] if chart.multiples else [(chart, "")]
    labels = list(dict.fromkeys(label for chart in charts for label in chart.labels))
    with mpl.rc_context(MATPLOTLIB):
        figure = _figure(panels, _handles(charts, {label: looks[label] for label in labels}))
        figure.text(
            1 - 0.1 / figure.get_figwidth(), 0.03 / figure.get_figheight(), one_line(footer, 100),
            ha="right", va="bottom", fontsize=_NOTE_SIZE, color=MUTED,
        )  # fmt: skip
        longest = max(len(one_line(only or chart.title, 60)) for chart, only in panels)
        width = 72 * figure.axes[0].get_position().width * figure.get_figwidth()
        for axes, (chart, only) in zip(figure.axes, panels, strict=True):
            _panel(axes, chart, looks, only, min(_TITLE_SIZE, width / (_BOLD * max(1, longest))))
        data = "\n".join(chart.csv() for chart in charts)
        return Plot(name, render(figure), data, figure)


def _figure(panels: Sequence[_Panel], handles: Sequence[Line2D]) -> Figure:
    """Margins are fixed, so that figures side by side have the same axes."""
    small = any(only for _, only in panels)
    columns = min(len(panels), 3 if small else 2)
    lines = -(-len(panels) // columns)
    (across, down), left = _SMALL if small else _PANEL, _LEFT
    rows = max((len(chart.y.ticks) for chart, _ in panels if chart.y.down), default=0)
    if rows:
        down = _TOP + _BOTTOM + _ROW * rows
        names = (name for chart, _ in panels for _, name in chart.y.ticks)
        left = 0.2 + 0.075 * max(len(one_line(name, 34)) for name in names)
    width = columns * across
    inner_x = (width - left - _RIGHT - (columns - 1) * _BESIDE) / columns
    widest = max((len(str(handle.get_label())) for handle in handles), default=1)
    in_row = max(1, min(len(handles), int(width * 15 / (widest + 7))))
    above = -(-len(handles) // in_row) * _LEGEND_LINE + _LEGEND_GAP
    height = lines * down + above
    figure = Figure(figsize=(width, height))
    inner_y = (height - above - _TOP - _BOTTOM - (lines - 1) * _BELOW) / lines
    figure.subplots_adjust(
        left=left / width,
        right=1 - _RIGHT / width,
        bottom=_BOTTOM / height,
        top=1 - (above + _TOP) / height,
        wspace=_BESIDE / inner_x,
        hspace=_BELOW / inner_y,
    )
    figure.legend(
        handles=handles, loc="upper left", ncols=in_row, bbox_to_anchor=(0.1 / width, 1),
        borderaxespad=0, borderpad=0.2,
    )  # fmt: skip
    for position in range(len(panels)):
        figure.add_subplot(lines, columns, position + 1)
    return figure


def _handles(charts: Sequence[Chart], looks: Mapping[str, Look]) -> list[Line2D]:
    """Keys of the engines, of parts with colours of their own, and of the mark of an invalid point."""
    key = {part: color for chart in charts for part, color in chart.key.items()}
    engines = {} if key else looks
    handles = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.line, label=one_line(label, 40))
        for label, look in engines.items()
    ]
    handles += [
        Line2D([], [], color=color, marker="s", linestyle="none", label=part) for part, color in key.items()
    ]
    if any(series.crossed for chart in charts for series in chart.series):
        handles.append(Line2D([], [], color=MUTED, marker="x", linestyle="none", label="invalid"))
    return handles


def _panel(axes: Axes, chart: Chart, looks: Mapping[str, Look], only: str, title_size: float) -> None:
    axes.set_title(
        one_line(only or chart.title, 60),
        fontsize=title_size,
        pad=_PAD_LIMIT if any(limit.axis == "x" for limit in chart.limits) else _PAD,
    )
    _side(axes, chart.x, chart.shown, "x")
    _side(axes, chart.y, chart.shown, "y")
    axes.grid(visible=not chart.y.down, axis="y")
    axes.grid(visible=False, axis="x")
    if not only:
        axes.set_xlabel(f"{one_line(chart.x.label, 60)} →", loc="left")
        view = chart.views[0].name if chart.views else ""
        axes.annotate(
            one_line(" · ".join(filter(None, (view, chart.note))), 80), (0, 0), (0, -29),
            xycoords="axes fraction", textcoords="offset points", va="top", fontsize=_NOTE_SIZE, color=MUTED,
        )  # fmt: skip
    shifts = _shifts(chart)
    for limit in chart.limits:
        (axes.axvline if limit.axis == "x" else axes.axhline)(
            limit.value, color=MUTED, linewidth=0.8, linestyle=":"
        )
        at, where = (limit.value, 1.0), ("data", "axes fraction")
        if limit.axis == "y":
            at, where = at[::-1], where[::-1]
        axes.annotate(
            limit.text, at, xycoords=where, textcoords="offset points", fontsize=_NOTE_SIZE, color=MUTED,
            annotation_clip=True, **_LIMIT_NAME[limit.axis],
        )  # fmt: skip
    for series in sorted(chart.shown, key=lambda series: (series.label == only, series.kind != "band")):
        pale = bool(only) and series.label != only
        look = looks[series.label]
        color = RULE if pale else series.color or look.color
        _draw(axes, series, look, color, shifts.get(series.label, 0.0))


def _side(axes: Axes, axis: Axis, series: Sequence[Series], which: str) -> None:
    """Ends and ticks as the page has them."""
    low, high = axis_ends(axis, series, which)
    if axis.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(*((high, low) if axis.down else (low, high)))
    side, marks = axes.xaxis if which == "x" else axes.yaxis, axis_ticks(axis, low, high)
    side.set_ticks([place for place, _ in marks], [one_line(name, 34) for _, name in marks])
    side.set_minor_locator(NullLocator())


def _shifts(chart: Chart) -> dict[str, float]:
    """Distance of each engine from its place, in units of x."""
    if not chart.dodge or chart.multiples:
        return {}
    places = [place for place, _ in chart.x.ticks]
    step = 0.18 if len(places) == 1 else 0.012 * (max(places) - min(places))
    middle = (len(chart.labels) - 1) / 2
    return {label: (i - middle) * step for i, label in enumerate(chart.labels)}


def _draw(axes: Axes, series: Series, look: Look, color: str, shift: float) -> None:
    x = [value + shift for value in series.x]
    low, high = list(series.low), list(series.high)
    if series.kind == "spans":
        lengths = [b - a for a, b in zip(low, high, strict=True)]
        axes.barh(
            list(series.y), lengths, left=low, height=series.width, color=color, alpha=series.opacity,
            linewidth=0,
        )  # fmt: skip
        return
    if series.kind == "band":
        if len(x) == 1:
            axes.vlines(x, low, high, color=color, alpha=0.3, linewidth=9)
        else:
            axes.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0)
        return
    for at, a, b in zip(x, low, high, strict=True) if low else ():
        if math.isfinite(a) and math.isfinite(b):
            axes.vlines(at, a, b, color=color, linewidth=1, alpha=0.8)
    axes.plot(
        x,
        list(series.y),
        color=color,
        linestyle=look.line if series.kind == "line" else "none",
        marker=look.marker if series.markers else "none",
        markersize=5 if len(x) < 100 else 2.6,
        markerfacecolor=PAPER if series.hollow else color,
        alpha=series.opacity,
        clip_on=False,
    )
    for i in series.crossed:
        axes.plot(x[i], series.y[i], "x", color=INK, markersize=8)


# --- SVG ------------------------------------------------------------------------------------------------


def render(figure: Figure) -> str:
    """A figure as SVG. Call within `matplotlib.rc_context(MATPLOTLIB)`."""
    buffer = io.StringIO()
    with _quiet():
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return buffer.getvalue()


def _quiet() -> warnings.catch_warnings[None]:
    """Labels may hold characters that the font does not."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


# --- Places along the axes of a figure, as `templates/charts.js` has them --------------------------------

#: From so many decades on, a logarithmic axis has marks at powers of ten alone.
_MANY_DECADES = 2.5


def axis_ends(axis: Axis, series: Sequence[Series], which: str) -> tuple[float, float]:
    """Ends of an axis, its own or those between which all series are seen."""
    return axis.ends or _fit(axis, list(values_of(series, which)))


def axis_ticks(axis: Axis, low: float, high: float) -> list[tuple[float, str]]:
    """Places with names on an axis from `low` to `high`: its own, or round numbers."""
    if axis.ticks:
        return list(axis.ticks)
    values = _decades(low, high) if axis.log else _steps(low, high)
    return [(value, f"{value:,.10g}") for value in values]


def _fit(axis: Axis, values: list[float]) -> tuple[float, float]:
    if axis.ticks:
        places = [place for place, _ in axis.ticks]
        margin = 0.08 * (max(places) - min(places)) or 0.6
        return min(places) - margin, max(places) + margin
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)]
    if not finite:
        return (0.1, 1.0) if axis.log else (0.0, 1.0)
    if axis.log:
        return _log_ends(min(finite) / 1.05, max(finite) * 1.15)
    return min(0.0, *finite), max(0.0, *finite) * 1.06 or 1.0


def _steps(low: float, high: float) -> list[float]:
    """Four to eight round numbers."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ends(low: float, high: float) -> tuple[float, float]:
    """The ends of a logarithmic axis that holds `low` to `high`: it begins at one of its marks."""
    power = 10.0 ** math.floor(math.log10(low))
    mark = max(digit * power for digit in (1, 2, 5) if digit * power <= low)
    return max(digit * power for digit in _digits(mark, high) if digit * power <= mark), high


def _digits(low: float, high: float) -> tuple[int, ...]:
    """Multiples of powers of ten that have marks: 1 alone where there are many powers."""
    return (1, 2, 5) if math.log10(high / low) < _MANY_DECADES else (1,)


def _decades(low: float, high: float) -> list[float]:
    """The marks of a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = _digits(low, high)
    marks = (digit * 10.0**power for power in powers for digit in digits)
    return [mark for mark in marks if low <= mark <= high]
