"""The figures of a run, as files."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report.charts.by_load import alone
from harness.report.charts.run_charts import Charts
from harness.report.figures.chart_figure import plot
from harness.report.figures.style import looks
from harness.report.figures.svg import Plot
from harness.report.text.load_words import load_file_name
from harness.runs.reader import Run
from harness.schema.metrics import METRICS

#: Percentiles that have a figure of their own.
_ALONE = (90, 99)


def figures(run: Run, charts: Charts) -> Iterator[Plot]:
    """Every chart of the run, each percentile of interest by itself, and the overview."""
    styles, by_load = looks(run.engines), charts.by_load
    together = [chart for metric, chart in by_load.items() if "overview" in METRICS[metric].uses]
    if together:
        yield plot("overview", together, styles, "Latencies by load")
    for chart in by_load.values():
        yield plot(chart.name, [chart], styles)
        for q in _ALONE:
            single = alone(chart, q)  # where samples do not support it, those that they do
            yield plot(single.name, [single], styles)
    for load, over_time in charts.over_time.items():
        yield plot(f"timeline_{load_file_name(load)}", over_time, styles)
    shown = {*(chart.name for charts_ in charts.over_time.values() for chart in charts_), *_names(charts)}
    for name, chart in charts.every.items():
        if name not in shown:
            yield plot(name, [chart], styles)


def _names(charts: Charts) -> set[str]:
    """Of the figures by load."""
    return {chart.name for chart in charts.by_load.values()} | {
        f"{chart.name}_p{q}" for chart in charts.by_load.values() for q in _ALONE
    }
