"""What the figures share: the places of loads, log axes with plain numbers, small print."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.report.figures.style import MUTED, PAPER, Look
from harness.report.text.load_words import axis_label, axis_number, axis_values
from harness.schema.load import Load
from harness.schema.results import OnlineSummary

LOG_FROM = 20.0


def places(pooled: Sequence[OnlineSummary]) -> dict[Load, float]:
    """Each load's place, heavier to the right: logarithmic, and one step each where two are too close."""
    ordered, logs = [], []
    for load, value in axis_values(pooled).items():
        ordered.append(load)
        logs.append(math.log2(value))
    span = logs[-1] - logs[0]
    if any(b - a < 0.12 * span for a, b in itertools.pairwise(logs)):
        logs = [float(position) for position in range(len(ordered))]
    return dict(zip(ordered, logs, strict=True))


def load_axis(axes: Axes, at: Mapping[Load, float], pooled: Sequence[OnlineSummary]) -> None:
    """Tick each load, and nothing else."""
    texts = [axis_number(load, value) for load, value in axis_values(pooled).items()]
    axes.set_xticks(list(at.values()), texts)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(visible=False, axis="x")
    margin = 0.08 * (max(at.values()) - min(at.values())) or 0.6
    axes.set_xlim(min(at.values()) - margin, max(at.values()) + margin)
    axes.set_xlabel(f"{axis_label(next(iter(at)))} →", loc="left")


def fit_values(axes: Axes, values: Sequence[float], which: str = "y") -> None:
    """From zero, or logarithmic where the positive values span more than a factor of 20."""
    shown = [value for value in values if math.isfinite(value) and value > 0]
    setter = axes.set_ylim if which == "y" else axes.set_xlim
    if not shown:
        return
    if max(shown) / min(shown) <= LOG_FROM:
        setter(0, max(shown) * 1.06)
        axis = axes.yaxis if which == "y" else axes.xaxis
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        return
    (axes.set_yscale if which == "y" else axes.set_xscale)("log")
    setter(min(shown) / 1.15, max(shown) * 1.15)
    axis = axes.yaxis if which == "y" else axes.xaxis
    decades = math.log10(max(shown) / min(shown))
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if which == "y":
        axes.annotate(
            "log", (0, 1), (-5, 4), xycoords="axes fraction", textcoords="offset points", ha="right",
            fontsize=7, color=MUTED,
        )  # fmt: skip


def hollow(look: Look) -> dict[str, Any]:
    """Line2D properties of a marker that is only an outline."""
    return {
        "color": look.color,
        "marker": look.marker,
        "linestyle": "none",
        "markerfacecolor": PAPER,
        "markeredgewidth": 1.2,
    }


def footnote(axes: Axes, text: str) -> None:
    """Small print at the right, level with an axis label at the left."""
    axes.annotate(
        text, (1, 0), (0, -20), xycoords="axes fraction", textcoords="offset points", ha="right", va="top",
        fontsize=7, color=MUTED,
    )  # fmt: skip


def key(axes: Axes, text: str) -> None:
    """Small print at the right of the title: how to read the marks."""
    axes.set_title(text, loc="right", fontsize=7, fontweight="normal", color=MUTED)
