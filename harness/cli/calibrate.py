"""`bench calibrate`: how fast and how exact the client is on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from harness.calibration.calibrate import calibrate as measure
from harness.calibration.calibrate import stored_at
from harness.cli.terminal import Terminal, echo
from harness.schema.machines import Calibration


def calibrate(
    quick: Annotated[
        bool, typer.Option("--quick", help="measure one client process only: 20 s instead of 50 s")
    ] = False,
) -> None:
    """Measure the client against a server of known latency.

    `bench online` uses the result to judge its cells.
    """
    progress = Terminal(stderr=True)
    with progress.status("starting") as status:
        calibration = measure(quick=quick, report_status=lambda what: status.update(what))
    _show(calibration, Terminal())
    echo(stored_at())


def _show(calibration: Calibration, console: Terminal) -> None:
    machine = calibration.machine
    console.print(
        f"{machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, Python {machine.python}, "
        f"uvloop {machine.uvloop}\n"
    )
    ceilings = Table(
        "client processes", "chunks/s each", "chunks per CPU s", "requests/s each", "limited by", box=None
    )
    for ceiling in calibration.ceilings:
        ceilings.add_row(
            str(ceiling.processes),
            f"{ceiling.chunks_per_s:,.0f}",
            f"{ceiling.chunks_per_cpu_s:,.0f}",
            f"{ceiling.requests_per_s:,.0f}",
            ceiling.limit,
        )
    console.print(ceilings)
    console.print("\nMeasured minus true, ms:")
    errors = Table(
        "client processes", "in flight", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "submit lag p99",
        box=None,
    )  # fmt: skip
    for error in calibration.errors:
        values = (
            error.ttft_error_ms.p50,
            error.ttft_error_ms.p99,
            error.itl_error_ms.p50,
            error.itl_error_ms.p99,
            error.submit_lag_ms.p99,
        )
        errors.add_row(str(error.processes), str(error.concurrency), *(f"{value:.3f}" for value in values))
    console.print(errors)
