"""`bench online`: runs an online benchmark, shows its progress, prints the path of the report."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.command_line import clear_process_list, command_line
from harness.cli.ending import print_ending, report_so_far
from harness.cli.live_server import listen, served
from harness.cli.options import with_settings
from harness.cli.outcome import Json, Open, Quiet, conclude
from harness.cli.profile import profile_after, profile_only
from harness.cli.progress import make_display
from harness.cli.refused import refused
from harness.errors import BenchError, InterruptedRunError
from harness.metrics.validity import few_rounds
from harness.profiling.plan import unprofiled
from harness.report.render import write_outputs
from harness.report.text.numbers import plural, several
from harness.report.text.run_notices import MORE_ROUNDS
from harness.runs.events import Event, Started
from harness.runs.folder import resume_command
from harness.runs.online import results_so_far, resume_online, run_online
from harness.runs.reader import OnlineRun, load_run
from harness.schema.load import ClosedLoop
from harness.schema.online_settings import OnlineSettings
from harness.schema.search import SearchPlan
from harness.schema.tune import TunePlan

EXAMPLES = (
    "bench online --engines roseinfer,vllm --scales 0.4,0.8,1.6 --repeats 5",
    "bench online --base-url http://127.0.0.1:8000 --concurrency 1,8,64 --rounds 10",
    "bench online --engines vllm --concurrency 8 --slo ttft_ms=200,tpot_ms=50",
)

Serve = Annotated[
    int | None,
    typer.Option(
        help="show the finished cells in a browser meanwhile, at this port of this machine; 0: a free one",
        metavar="PORT",
    ),
]
Resume = Annotated[Path | None, typer.Option(help="finish this run, with its own settings", metavar="RUN")]


@with_settings(OnlineSettings, instead="resume")
def online(
    settings: OnlineSettings | None,
    resume: Resume = None,
    serve: Serve = None,
    open_report: Open = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure each engine's server under load: a trace, or a fixed number of requests in flight."""
    measure(settings, resume, serve=serve, open_report=open_report, as_json=as_json, quiet=quiet)


def measure(
    settings: OnlineSettings | None,
    resume: Path | None,
    search: SearchPlan | None = None,
    tune: TunePlan | None = None,
    *,
    serve: int | None = None,
    open_report: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run, or finish the run `resume`, show its progress, print where the report is."""
    folder: Path | None = None
    measured: OnlineRun | None = None
    fault: BenchError | None = None
    clear_process_list()
    with make_display(quiet) as display, ExitStack() as served_inside:
        listener = None if serve is None else served_inside.enter_context(listen(serve))

        def show(event: Event) -> None:
            nonlocal folder
            if isinstance(event, Started):
                folder = event.folder
            display.show(event)
            if isinstance(event, Started) and listener is not None:
                display.line(f"live page: {served_inside.enter_context(served(event.folder, listener))}")

        if settings is not None and settings.profile_only:
            profile_only(settings, display)
            return
        try:
            if settings is not None:
                if settings.preset_text is not None:
                    display.line(settings.preset_text)
                if search is not None and settings.settle is not None:
                    display.line(
                        f"each cell: {settings.settle:g} s to settle, then {settings.measured_s:g} s or more "
                        "are measured (--settle, --min-duration)"
                    )
                for load in settings.loads if search is None and settings.min_duration is None else ():
                    if short := few_rounds(load, settings.requests(load)):
                        display.line(f"{short.text}. {MORE_ROUNDS}")
                if search is None and (more := _more_than_rounds(settings)):
                    display.line(more)
                run, _ = run_online(settings, command_line(), show, search, tune)
            else:
                assert resume is not None
                run, _ = resume_online(resume, show)
            measured = _measured(run)
            report = write_outputs(measured)
        except KeyboardInterrupt:
            if folder is None:
                raise
            fault = InterruptedRunError("interrupted; finished cells are saved", _finish(folder))
            so_far = report_so_far(
                lambda: measured or _measured(folder),
                display,
                shows_something=lambda: measured is not None or results_so_far(folder) is not None,
            )
            if so_far is None:
                raise fault from None
            measured, report = so_far
        except BenchError as error:
            if folder is not None:
                after = "start a new run" if error.new_run else _finish(folder)
                error.hint = "; then ".join(filter(None, (error.hint, after)))
            raise
        except OSError as error:
            raise (folder and refused(error, _finish(folder))) or error from None
        tools = measured.meta.settings.profile
        if fault is None and tools is not None and (engines := unprofiled(run, measured.results, tools)):
            fault = profile_after(run, tools, display, engines)
    print_ending(measured, display)
    conclude(measured.results, report, fault, as_json=as_json, open_report=open_report)


def _more_than_rounds(settings: OnlineSettings) -> str:
    """Where --n sends more than --rounds asks for; empty where it does not."""
    rounds = settings.rounds or settings.n
    levels = [load.concurrency for load in settings.loads if isinstance(load, ClosedLoop)]
    fewer = [level for level in levels if level * rounds < settings.n]
    if not fewer:
        return ""
    *most, last = (level * rounds for level in fewer)
    needed = several([*map(str, most), plural(last, "request")])
    return (
        f"With {several(map(str, fewer))} in flight, --rounds {rounds} needs {needed}; "
        f"--n {settings.n} sends {settings.n}; a lower --n sends fewer."
    )


def _measured(folder: Path) -> OnlineRun:
    """The run whose results have just been written."""
    run = load_run(folder, trust=True)
    assert isinstance(run, OnlineRun)
    return run


def _finish(folder: Path) -> str:
    return f"finish the run with `{resume_command(folder)}`"
