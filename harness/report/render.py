"""Runs in, files out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.files import write_whole
from harness.plain_text import one_line
from harness.report.answer import answer, terms
from harness.report.charts.run_charts import Charts, charts
from harness.report.compared import Choice
from harness.report.decision import NOTHING, Asked, decide
from harness.report.html import render
from harness.report.notices import notices
from harness.report.results_csv import results_csv
from harness.report.sections import PAGE_ONLY, sections
from harness.report.several import changes
from harness.report.tables.table import Table
from harness.report.text.heading import facts, title
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


def summary(run: Run) -> str:
    """Return `summary.md`, text that pastes into an issue: what was compared, warnings, the verdict and the
    tables of a run."""
    parts = [f"# {_text(title(run))}\n"]
    lines = [f"- {_text(name)}: {_text(value)}" for name, value in facts(run).items()]
    parts.append("\n".join(lines) + "\n")
    parts += [f"> **{_text(notice.title)}** {_text(notice.detail, 4000)}\n" for notice in notices(run)]
    parts.append(_text(" ".join([*map(str, answer(run)), *terms(run)]), 2000) + "\n")
    if run.has_results:
        by_section = sections(run, None if run.is_batch else decide(run))
        parts += [markdown(each) for name in by_section if name not in PAGE_ONLY for each in by_section[name]]
    return "\n".join(parts)


def markdown(shown: Table) -> str:
    """Return a pipe table under a heading, with its notes and what its marks mean."""
    rule = ["---:" if column.numeric else "---" for column in shown.columns]
    heads, *lines = ([_text(text) for text in line] for line in (shown.headers, *shown.lines))
    body = "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *lines))
    notes = [f"{_text(note, 1000)}\n" for note in (*shown.legend, *shown.notes)]
    return "\n".join([f"## {_text(shown.title)}\n", body, "", *notes])


def _text(text: str, limit: int = 300) -> str:
    """Text from outside that cannot end a cell, start markup or open a tag."""
    line = one_line(text, limit).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|`*_[]":
        line = line.replace(mark, f"\\{mark}")
    return line
