"""`bench convert-run FOLDER…`: runs of schema 1 as runs of schema 2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.terminal import echo
from harness.errors import UsageError
from harness.profiling.analysis import renew_gaps
from harness.report.render import write_run_outputs
from harness.runs.convert import convert_run as convert
from harness.runs.folder import OFFLINE_RESULTS


def convert_run(
    runs: Annotated[list[Path], typer.Argument(metavar="FOLDER…", help="folders of runs of schema 1")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="folder for the converted runs; default: FOLDER-schema2 next to each", metavar="DIR"
        ),
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="replace the folders themselves")] = False,
) -> None:
    """Convert runs of version 0.1 to this version's schema; the originals are kept."""
    if in_place and out is not None:
        raise UsageError("--in-place and --out exclude each other", "use one of them")
    for run in runs:
        name = run.resolve().name
        target = out / name if out is not None else run.resolve().with_name(f"{name}-schema2")
        converted = convert(run, None if in_place else target)
        renew_gaps(converted)
        if (converted / "report.html").is_file() and (
            (converted / "requests.parquet").is_file() or (converted / OFFLINE_RESULTS).is_file()
        ):
            write_run_outputs(converted)
        echo(converted)
