"""The cells of a search: which loads met the limits, and where the highest load is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.report.figures.axes import fit_values, hollow
from harness.report.figures.sketch import LINE, Sketch
from harness.report.figures.style import MUTED, Look
from harness.report.figures.svg import Plot
from harness.report.text.capacity import load_value
from harness.schema.search import CapacityFound, SearchResults, SearchTrial

_MET = {True: "met", False: "not met", None: "invalid"}


def capacity(search: SearchResults, styles: Mapping[str, Look]) -> Plot:
    """A line an engine: its cells in the order of measurement upwards, the interval as a bar below them."""
    sketch = Sketch(
        styles, ("engine", "load", "start", "met", "low", "high"), size=(4.6, 1.2 + 0.6 * len(styles))
    )
    axes = sketch.axes()
    for place, found in enumerate(search.engines):
        look = styles[found.label]
        bottom = len(search.engines) - 1 - place
        ends = [found.low or search.plan.lowest, found.high or search.plan.highest]
        (bar,) = axes.plot(
            ends, [bottom, bottom], color=look.color, linewidth=4, alpha=0.4, solid_capstyle="butt"
        )
        sketch.belongs(bar, found.label)
        for met in (True, False, None):
            cells = [(i, t) for i, t in enumerate(found.trials) if t.met is met]
            if not cells:
                continue
            style: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none"}
            style = style if met else hollow(look) if met is False else style | {"marker": "x"}
            heights = [bottom + 0.15 + 0.7 * i / len(found.trials) for i, _ in cells]
            (line,) = axes.plot([t.value for _, t in cells], heights, markersize=4, **style)
            sketch.points(line, found.label, [_tip(found, t) for _, t in cells])
        sketch.rows += [
            (found.label, t.value, t.start, _MET[t.met], found.low, found.high) for t in found.trials
        ]
    axes.set_yticks([])
    axes.set_ylim(-0.25, len(search.engines))
    axes.grid(visible=False, axis="y")
    fit_values(axes, [t.value for found in search.engines for t in found.trials], "x")
    axes.set_xlabel(search.plan.unit, loc="left")
    axes.annotate(
        "filled: limits met; hollow: not; bar: 95 % interval", (1, 0), (0, -20), xycoords="axes fraction",
        textcoords="offset points", ha="right", va="top", fontsize=7, color=MUTED,
    )  # fmt: skip
    return sketch.finish("capacity", "Cells of the search, and the highest load within the limits")


def _tip(found: CapacityFound, trial: SearchTrial) -> str:
    values = [
        f"{name}: {'no answer' if value is None else f'{value:.4g}'}"
        for name, value in trial.measured.items()
    ]
    return LINE.join([found.label, f"load {load_value(trial.value)}", _MET[trial.met], *values])
