"""Runs in, files out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.files import write_whole
from harness.report.charts.run_charts import Charts, charts
from harness.report.compared import Choice
from harness.report.decision import NOTHING, Asked
from harness.report.html import render
from harness.report.markdown import summary
from harness.report.results_csv import results_csv
from harness.report.several import changes
from harness.runs.reader import Run


def write_report(
    runs: Sequence[Run], out: Path, asked: Asked = NOTHING, choice: Choice | None = None
) -> Path:
    """Render one or several runs into the HTML file `out`, one chapter a run, and return it.

    Of several online runs the later ones are compared with the first.

    Args:
        asked: Limits and prices, instead of those that the runs were made with.
        choice: A choice in the first of the runs, with which the page opens.

    Raises:
        UsageError: a price is missing, or limits or prices have no run that they are for.
    """
    if asked != NOTHING and all(run.is_batch for run in runs):
        raise UsageError(
            f"limits and prices are for runs of bench online, and {runs[0].path} is an offline run",
            "leave out --slo and --price, or name an online run",
        )
    drawn = [(run, charts(run, asked)) for run in runs]
    page = render(drawn, out.parent, changes(runs), choice)
    write_whole(out, page.encode())
    return out


def write_outputs(run: Run) -> Path:
    """Write a run's files for reading into its folder, and return the report.

    They are `summary.md`, `results.csv`, `report.html` and, unless its settings say no, each figure as SVG,
    PNG and CSV.
    """
    if not run.meta.settings.figures:
        return write_without_figures(run)
    from harness.report.figures import figures  # matplotlib: a second to import

    drawn = charts(run)
    for plot in figures(run, drawn):
        figure = run.path / "figures" / plot.name
        write_whole(figure.with_name(f"{plot.name}.svg"), plot.svg.encode())
        write_whole(figure.with_name(f"{plot.name}.png"), plot.png())
        write_whole(figure.with_name(f"{plot.name}.csv"), plot.data.encode())
    return write_without_figures(run, drawn)


def write_without_figures(run: Run, drawn: Charts | None = None) -> Path:
    """Write all but the figures, which take longest, and return the report.

    Args:
        drawn: The run's charts, where they are made already.
    """
    folder, drawn = run.path, charts(run) if drawn is None else drawn
    write_whole(folder / "summary.md", summary(run).encode())
    write_whole(folder / "results.csv", results_csv(run).encode())
    write_whole(folder / "report.html", render([(run, drawn)], folder).encode())
    return folder / "report.html"
