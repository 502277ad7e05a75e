"""`bench online`: parse, run, show, name the report."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from harness.cells.online import resume_online, run_online
from harness.cli.options import with_settings
from harness.cli.progress import make_display
from harness.reporting.report import write_run_outputs
from harness.spec.settings import OnlineSettings

FAILED = 3


@with_settings(OnlineSettings)
def online(
    settings: OnlineSettings,
    resume: Annotated[
        Path | None, typer.Option(help="finish this run; other settings are its own", metavar="RUN")
    ] = None,
    open_report: Annotated[bool, typer.Option("--open", help="open the report in a browser")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="print nothing but the report's path")] = False,
) -> None:
    """Replay a trace at several scales against each engine's server, one engine at a time."""
    with make_display(quiet) as display:
        if resume is None:
            folder, results = run_online(settings, ["bench", *sys.argv[1:]], display.show)
        else:
            folder, results = resume_online(resume, display.show)
        report = write_run_outputs(folder)
    display.tables(results)
    print(report)
    if open_report:
        webbrowser.open(report.resolve().as_uri())
    faulty = [skipped for skipped in results.skipped if skipped.scale is not None]
    if faulty or any(summary.num_error for summary in results.summaries):
        raise typer.Exit(FAILED)
