"""Where the time to first token went: stacked bars."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.figures.axes import footnote
from harness.report.figures.sketch import LINE, Sketch
from harness.report.figures.style import INK, RULE, Look
from harness.report.figures.svg import Plot, plain
from harness.report.tables.waterfall import with_waterfall
from harness.report.text.load_words import head_of, load_file_name
from harness.report.text.numbers import decimals, number
from harness.schema.fairness import PARTS
from harness.schema.load import Load
from harness.schema.results import OnlineSummary

#: From light to dark along a request's way; each differs in lightness from its neighbours.
COLORS = {
    "client lag": "#c9ced4",
    "http": "#86b6dd",
    "queue": "#e3a04a",
    "prefill": "#2f6fb0",
    "delivery": "#79b791",
    "unexplained": "#84898f",
}


def waterfall(pooled: Sequence[OnlineSummary], load: Load) -> Plot:
    """The parts of the mean TTFT at one load, a bar an engine."""
    rows = [(one, found) for one, found in with_waterfall(pooled) if one.load == load]
    names = [plain(one.label, 28) for one, _ in rows]
    sketch = Sketch(
        {part: Look(COLORS[part], "s", "none") for part in PARTS},
        ("engine", head_of([load]), "part", "mean_ms", "n", "source"),
        (4.6, 0.95 + 0.36 * len(rows)),
        left=0.2 + 0.075 * max(map(len, names)),
        on_page=True,
    )
    axes = sketch.axes()
    for position, (one, found) in enumerate(rows):
        reach = 0.0
        middles, tips = [], []
        for part in found.parts:
            length = max(part.mean_ms or 0.0, 0.0)
            (bar,) = axes.barh(position, length, left=reach, height=0.6, color=COLORS[part.part])
            sketch.belongs(bar, one.label)
            if part.mean_ms is not None:
                middles.append(reach + length / 2)
                text = f"{part.part} {number(part.mean_ms, decimals([part.mean_ms]))} ms"
                tips.append(LINE.join((one.label, text, part.source, part.how)))
            sketch.rows.append((one.label, load.value, part.part, part.mean_ms, part.n, part.source))
            reach += length
        (marks,) = axes.plot(middles, [position] * len(middles), "s", color=INK, alpha=0)
        sketch.points(marks, one.label, tips)
        text_at = axes.annotate(
            number(found.total_ms, decimals([found.total_ms])),
            (reach, position), (4, 0), textcoords="offset points", va="center",
        )  # fmt: skip
        sketch.belongs(text_at, one.label)
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set(visible=True, color=RULE)
    axes.set_xlim(0, 1.15 * max(found.total_ms for _, found in rows))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.set_title(f"Mean TTFT at {load}, ms")
    footnote(axes, f"from the schedule; n ≥ {min(found.n for _, found in rows):,} requests a bar")
    return sketch.finish(
        f"waterfall_{load_file_name(load)}", f"Parts of the mean time to first token, {load}"
    )
