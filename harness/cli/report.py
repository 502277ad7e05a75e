"""`bench report RUN…`: renders stored runs into one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.terminal import Terminal, echo
from harness.cli.terminal_table import TerminalTable
from harness.errors import UsageError
from harness.files import check_writable
from harness.report.compared import Choice, chosen, compared_table, gaps_of, more, verdict
from harness.report.decision import Asked
from harness.report.index import write_index
from harness.report.render import write_report
from harness.report.tables.table import transposed
from harness.runs.folder import resume_command
from harness.runs.limits import parse_limits
from harness.runs.online import results_so_far
from harness.runs.reader import Run, is_unfinished, load_runs
from harness.schema.machines import read_prices

REPORTS = Path("reports")


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN...]",
            help="run folders; each becomes a chapter. Without any, only reports/index.html is written again",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="HTML file to write; default: reports/RUN.html")
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="limits by which the report judges loads", metavar="ttft_p99<=200ms,tpot_p99<=30ms"
        ),
    ] = None,
    price: Annotated[
        Path | None, typer.Option(help="YAML file: what an hour of a GPU or a machine costs", metavar="FILE")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="engines that are compared, the second being the baseline, or the baseline of all others: "
            "printed, and what the page opens with",
            metavar="ENGINE[,ENGINE]",
        ),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            help="the load at which these engines are compared, as the tables name it", metavar="LOAD"
        ),
    ] = None,
) -> None:
    """Render one or several runs into one self-contained HTML file, and the index of all reports."""
    if not runs:
        if out is not None:
            raise UsageError("--out needs a run", "name one or more run folders")
        if not REPORTS.is_dir():
            raise UsageError(f"there is no folder {REPORTS} here", "name the run to report")
        echo(f"all reports: {write_index(REPORTS)}")
        return
    request = Asked(() if slo is None else parse_limits(slo), None if price is None else read_prices(price))
    target = out or REPORTS / f"{default_name(runs)}.html"
    if target.is_dir():
        raise UsageError(f"{target} is a folder", f"give a file, such as {target / default_name(runs)}.html")
    check_writable(target)
    for ended in runs:  # by a kill, or with its machine
        if is_unfinished(ended) and results_so_far(ended) is None:
            raise UsageError(f"no cell of {ended} is finished", f"finish it: {resume_command(ended)}")
    loaded, choice = load_runs(runs), None
    if compare is not None or load is not None:
        choice = chosen(loaded[0], compare, load)
        _print_choice(loaded[0], choice)
    echo(f"report: {write_report(loaded, target, request, choice)}")
    if out is None:
        echo(f"all reports: {write_index(REPORTS)}")


def _print_choice(run: Run, choice: Choice) -> None:
    """Print what the page says of it: the sentence, why, and the table, a row a statistic."""
    console, table = Terminal(), transposed(compared_table(run, choice))
    for sentence in (verdict(run, choice), *more(run, choice, gaps_of(run))):
        console.print(str(sentence), soft_wrap=not console.is_terminal)
    console.print(TerminalTable(table))
    for line in (*table.notes, *table.legend):
        console.print(line, soft_wrap=not console.is_terminal)


def default_name(runs: list[Path]) -> str:
    """The run's name; for several runs, the first name and the number of the others."""
    first = runs[0].resolve().name
    return first if len(runs) == 1 else f"{first}_and_{len(runs) - 1}_more"
