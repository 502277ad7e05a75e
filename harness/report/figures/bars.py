"""Offline throughput as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from harness.report.figures.axes import footnote
from harness.report.figures.sketch import LINE, Sketch
from harness.report.figures.style import INK, RULE, Look
from harness.report.figures.svg import Plot, plain
from harness.schema.metrics import METRICS
from harness.schema.results import OfflineResult


def bars(results: Sequence[OfflineResult], styles: Mapping[str, Look], metric: str) -> Plot:
    """One bar an engine, as long as the mean of its repeats, with a dot for each repeat."""
    term = METRICS[metric]
    names = [plain(label, 34) for label in styles]
    sketch = Sketch(
        styles,
        ("engine", "repeat", term.unit),
        (4.6, 0.9 + 0.34 * len(styles)),
        left=0.2 + 0.075 * max(map(len, names)),
        has_legend=False,
    )
    axes = sketch.axes()
    for position, (label, look) in enumerate(styles.items()):
        repeats = [result for result in results if result.label == label]
        found: list[float] = [getattr(result, metric) for result in repeats]
        sketch.rows += [(label, result.repeat, getattr(result, metric)) for result in repeats]
        mean = sum(found) / len(found)
        (bar,) = axes.barh(position, mean, height=0.62, color=look.color)
        sketch.belongs(bar, label)
        (dots,) = axes.plot(found, [position] * len(found), "o", color=INK, markersize=3, alpha=0.7)
        tips = [
            f"{label}, repeat {result.repeat}{LINE}{_bar_text(value)} {term.unit}"
            for result, value in zip(repeats, found, strict=True)
        ]
        sketch.points(dots, label, tips)
        text = axes.annotate(
            _bar_text(mean),
            (max(found), position),
            (5, 0),
            textcoords="offset points",
            va="center",
        )
        sketch.belongs(text, label)
    axes.set_yticks(range(len(styles)), names)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, max(getattr(result, metric) for result in results) * 1.25)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set(visible=True, color=RULE)
    better = "lower" if term.lower_is_better else "higher"
    axes.set_title(f"{term.title[0].upper()}{term.title[1:]}, {term.unit}")
    footnote(axes, f"{better} is better")
    prompts = sorted({result.num_prompts for result in results})
    axes.set_xlabel(f"n = {', '.join(str(count) for count in prompts)} prompts a run", loc="left")
    return sketch.finish(f"offline_{metric}", f"{term.title} of each engine on the offline batch")


def _bar_text(value: float) -> str:
    """Four digits, and never as a power of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
