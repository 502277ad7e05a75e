"""A benchmark from its first cell to its report, however it ends: online, offline, search and tune."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.cli.ending import print_ending, report_so_far
from harness.cli.faults import refused
from harness.cli.outcome import conclude
from harness.cli.profile import profile_after
from harness.cli.progress import Display
from harness.errors import BenchError, InterruptedRunError, NothingMeasuredError
from harness.profiling.plan import unprofiled
from harness.report.render import write_outputs, write_without_figures
from harness.runs.events import Event, Notify, Started
from harness.runs.folder import resume_command
from harness.runs.reader import Run, load_run, load_unmeasured


@dataclass(frozen=True)
class Ended:
    """A run that has a report, and the error that ended it or its profiling."""

    run: Run
    report: Path
    fault: BenchError | None = None


def measure_and_report(
    measure: Callable[[Notify], object],
    results_so_far: Callable[[Path], object | None],
    display: Display,
    notify: Notify,
) -> Ended:
    """Measure, write the report, and profile where that was asked for.

    Args:
        measure: Measures a run or the rest of one, and writes its results.
        results_so_far: Writes the results of what an interrupted run has; None: they show nothing yet.
        notify: Gets the run's events.

    Raises:
        BenchError: As `measure`, with how to go on, and there is no report; or the user interrupted it.
    """
    folder: Path | None = None
    measured: Run | None = None
    fault: BenchError | None = None

    def show(event: Event) -> None:
        nonlocal folder
        if isinstance(event, Started):
            folder = event.folder
        notify(event)

    try:
        measure(show)
        assert folder is not None
        measured = load_run(folder, trust=True)
        report = write_outputs(measured)
    except KeyboardInterrupt:
        if folder is None:
            raise
        begun, complete = folder, measured
        fault = InterruptedRunError("interrupted; every finished cell is saved", _finish(folder))
        so_far = report_so_far(
            lambda: complete or load_run(begun, trust=True),
            display,
            shows_something=lambda: complete is not None or results_so_far(begun) is not None,
        )
        if so_far is None:
            raise fault from None
        measured, report = so_far
    except BenchError as error:
        if folder is not None:
            after = "start a new run" if error.new_run else _finish(folder)
            error.hint = "; then ".join(filter(None, (error.hint, after)))
        if folder is not None and isinstance(error, NothingMeasuredError):
            failed = load_unmeasured(folder)
            return Ended(failed, write_without_figures(failed), error)
        raise
    except OSError as error:
        raise (folder and refused(error, _finish(folder))) or error from None
    tools = measured.meta.settings.profile
    if fault is None and tools is not None and (engines := unprofiled(folder, measured.results, tools)):
        fault = profile_after(folder, tools, display, engines)
    return Ended(measured, report, fault)


def print_end(ended: Ended, display: Display, *, open_report: bool, as_json: bool) -> None:
    """Print how a run ended, and exit with its code; where nothing was measured, the error says why.

    Raises:
        BenchError: The error that ended it.
    """
    if not isinstance(ended.fault, NothingMeasuredError):
        print_ending(ended.run, display)
    conclude(ended.run.results, ended.report, ended.fault, as_json=as_json, open_report=open_report)


def _finish(folder: Path) -> str:
    return f"finish the run with `{resume_command(folder)}`"
