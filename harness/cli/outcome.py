"""The end of a benchmark: what is printed to stdout, and the exit code."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.terminal import echo
from harness.errors import BenchError
from harness.schema.results import OnlineResults

FAILED = 3

Open = Annotated[bool, typer.Option("--open", help="open the report in a browser")]
Json = Annotated[bool, typer.Option("--json", help="print the results as JSON instead of the report's path")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print nothing but the report's path")]


def conclude(
    results: OnlineResults,
    report: Path,
    fault: BenchError | None,
    *,
    as_json: bool,
    open_report: bool,
) -> None:
    """Print the report's path or the results, alone, to stdout.

    Exits with 3 when something failed or no cell is valid (docs/faq.md).

    Raises:
        BenchError: `fault`, the error of the profiling after the benchmark.
    """
    echo(results.model_dump_json(indent=2) if as_json else report)
    if open_report:
        webbrowser.open(report.resolve().as_uri())
    if fault is not None:
        raise fault
    if _failed(results):
        raise typer.Exit(FAILED)


def _failed(results: OnlineResults) -> bool:
    """Return whether something that was started failed, or no cell is valid.

    An engine that is not installed was not started. A search finds loads that are too heavy, at which
    requests may fail.
    """
    if any(skipped.repeat is not None for skipped in results.skipped):
        return True
    if any(unasked.reason for unasked in results.meta.unasked):
        return True
    failed = results.search is None and any(summary.num_error for summary in results.summaries)
    return failed or not any(summary.valid for summary in results.summaries)
