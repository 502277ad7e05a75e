"""Empirical distribution functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.metrics.percentiles import missing, percentiles
from harness.metrics.samples import Group
from harness.report.figures.axes import fit_values, key
from harness.report.figures.sketch import LINE, Sketch
from harness.report.figures.style import Look
from harness.report.figures.svg import Plot
from harness.report.text.load_words import load_file_name, where
from harness.report.text.numbers import decimals, number
from harness.schema.metrics import METRICS

#: Per cent at which a distribution function is drawn: even, and finer at the tail.
LEVELS = np.unique(np.concatenate([np.linspace(0, 100, 101), np.linspace(95, 100, 51)]))
_MARKS = (50, 90, 99)


def ecdf(groups: Sequence[Group], styles: Mapping[str, Look], metric: str) -> Plot:
    """The share of requests (or of tokens, or of chunks) at or below each latency, at one load, one line an
    engine.

    Args:
        groups: One per engine, all at the same load. Markers are at p50, p90 and p99.
    """
    term, load = METRICS[metric], groups[0].load
    sketch = Sketch({group.label: styles[group.label] for group in groups}, ("engine", "percent", "ms"))
    axes = sketch.axes()
    reach: list[float] = []
    for group in groups:
        sample = group.sample(metric)
        if not sample.values.size:
            continue
        look = styles[group.label]
        n = sample.values.size if sample.weights is None else int(sample.weights.sum())
        marks = [q for q in _MARKS if not missing(q, n)]
        found = percentiles(sample.values, sample.weights, [*LEVELS, *marks])
        curve, at = found[: len(LEVELS)], found[len(LEVELS) :]
        (line,) = axes.plot(curve, LEVELS, color=look.color, linestyle=look.line, linewidth=1.4)
        sketch.belongs(line, group.label)
        (dots,) = axes.plot(at, marks, look.marker, color=look.color, markersize=4.5)
        tips = [
            LINE.join(
                (
                    f"{group.label}, {load}",
                    f"{term.label} p{q} {number(float(value), decimals([float(value)]))} ms",
                    f"n = {n:,}",
                )
            )
            for q, value in zip(marks, at, strict=True)
        ]
        sketch.points(dots, group.label, tips)
        sketch.rows += [(group.label, float(q), float(ms)) for q, ms in zip(LEVELS, curve, strict=True)]
        reach += [float(curve[1]), float(curve[-1])]
    axes.set_title(f"{term.label} at {load}, ms")
    axes.set_ylim(0, 101)
    axes.set_yticks([0, 25, 50, 75, 90, 100], ["0 %", "25 %", "50 %", "75 %", "90 %", "100 %"])
    fit_values(axes, reach, "x")
    what = f"{term.sample}s"
    key(axes, f"share of {what}; marks at p50, p90, p99")
    return sketch.finish(
        f"ecdf_{term.short_name}_{load_file_name(load)}", f"Distribution of {term.title} {where(load)}"
    )
