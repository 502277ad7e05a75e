"""Charts with a row an engine: parts of the TTFT, offline throughput, the cells of a search."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from harness.report.charts.chart import Axis, Chart, Series, is_wide
from harness.report.tables.cells import with_waterfall
from harness.report.text.load_words import load_file_name
from harness.report.text.numbers import plural
from harness.schema.base import repeat_text
from harness.schema.fairness import PARTS
from harness.schema.load import Load
from harness.schema.metrics import METRICS
from harness.schema.results import BatchRow, OnlineSummary
from harness.schema.search import SearchResults

#: From light to dark along a request's way; each differs in lightness from its neighbours.
COLORS = {
    "client lag": "#c9ced4",
    "http": "#86b6dd",
    "queue": "#e3a04a",
    "prefill": "#2f6fb0",
    "delivery": "#79b791",
    "unexplained": "#84898f",
}
_MET = {True: "limits met", False: "limits not met", None: "invalid"}


def rows(labels: Sequence[str]) -> Axis:
    """An axis of engines from top to bottom."""
    ticks = [(float(i), label) for i, label in enumerate(labels)]
    return Axis("engine", ticks=ticks, ends=(-0.5, len(labels) - 0.5), down=True)


def waterfall(pooled: Sequence[OnlineSummary], load: Load) -> Chart:
    """The parts of the mean TTFT at one load, a bar an engine."""
    found = [(summary, parts) for summary, parts in with_waterfall(pooled) if summary.load == load]
    series = []
    for row, (summary, parts) in enumerate(found):
        reach = 0.0
        for part in parts.parts:
            length = max(part.mean_ms or 0.0, 0.0)
            series.append(
                Series(
                    summary.label, "spans", [length], [float(row)], part=part.part, low=[reach],
                    high=[reach + length], n=[part.n], notes=[f"{part.source}: {part.how}"],
                    color=COLORS[part.part], is_length=True,
                )
            )  # fmt: skip
            reach += length
    order: list[str] = list(PARTS)
    return Chart(
        name=f"waterfall_{load_file_name(load)}",
        title=f"Mean TTFT at {load}, ms",
        x=Axis("mean TTFT from the schedule, ms", "ms"),
        y=rows([summary.label for summary, _ in found]),
        series=sorted(series, key=lambda s: order.index(s.part)),
        note=f"from the schedule; n ≥ {min(p.n for _, p in found):,} requests a bar",
    )


def bars(results: Sequence[BatchRow], metric: str) -> Chart:
    """One bar an engine, as long as the mean of its repeats, with a marker for each repeat."""
    term = METRICS[metric]
    labels = list(dict.fromkeys(result.label for result in results))
    series = []
    for row, label in enumerate(labels):
        repeats = [result for result in results if result.label == label]
        values = [float(getattr(result, metric)) for result in repeats]
        mean, count = fmean(values), plural(len(values), "repeat")
        at = [float(row)] * len(values)
        series += [
            Series(label, "spans", [mean], [float(row)], part="mean", low=[0.0], high=[mean],
                   notes=[f"mean of {count}"], opacity=0.8, is_length=True),
            Series(label, "points", values, at, part="repeat", hollow=True,
                   notes=[repeat_text(result.repeat) for result in repeats]),
        ]  # fmt: skip
    better = "lower" if term.lower_is_better else "higher"
    prompts = sorted({result.num_prompts for result in results})
    return Chart(
        name=f"offline_{metric}",
        title=f"{term.title[0].upper()}{term.title[1:]}, {term.unit}",
        x=Axis(term.unit, term.unit),
        y=rows(labels),
        series=series,
        note=f"{better} is better; n = {', '.join(str(count) for count in prompts)} prompts a run",
    )


def capacity(search: SearchResults) -> Chart:
    """A row an engine: its cells in the order of measurement downwards, and the interval as a bar."""
    series = []
    for row, found in enumerate(search.engines):
        low, high = found.low or search.plan.lowest, found.high or search.plan.highest
        series.append(
            Series(found.label, "spans", [low], [float(row)], part="95 % interval", low=[low], high=[high],
                   opacity=0.4, width=0.12)
        )  # fmt: skip
        for met, part in _MET.items():
            cells = [(i, trial) for i, trial in enumerate(found.trials) if trial.met is met]
            if not cells:
                continue
            notes = [
                ", ".join(
                    f"{name} {'no answer' if value is None else f'{value:.4g}'}"
                    for name, value in trial.measured.items()
                )
                for _, trial in cells
            ]
            at = [row - 0.4 + 0.7 * i / len(found.trials) for i, _ in cells]
            series.append(
                Series(found.label, "points", [trial.value for _, trial in cells], at, part=part, notes=notes,
                       hollow=met is False, invalid=list(range(len(cells))) if met is None else ())
            )  # fmt: skip
    return Chart(
        name="capacity",
        title="Cells of the search, and the highest load within the limits",
        x=Axis(search.plan.unit, log=is_wide(t.value for e in search.engines for t in e.trials)),
        y=rows([found.label for found in search.engines]),
        series=series,
        note="filled: limits met; hollow: not; bar: 95 % interval",
    )
