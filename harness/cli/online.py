"""`bench online`: runs an online benchmark, shows its progress, prints the path of the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.command_line import clear_process_list, command_line
from harness.cli.live_server import listen, served
from harness.cli.measure import measure_and_report, print_end
from harness.cli.options import Resume, with_settings
from harness.cli.outcome import Json, Open, Quiet
from harness.cli.profile import profile_only
from harness.cli.progress import make_display
from harness.metrics.validity import few_rounds
from harness.report.text.cell_notices import MORE_ROUNDS
from harness.report.text.numbers import plural, several
from harness.runs.events import Event, Notify, Started
from harness.runs.online import results_so_far, resume_online, run_online
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
    clear_process_list()
    with make_display(quiet) as display, ExitStack() as served_inside:
        listener = None if serve is None else served_inside.enter_context(listen(serve))

        def show(event: Event) -> None:
            display.show(event)
            if isinstance(event, Started) and listener is not None:
                display.line(f"live page: {served_inside.enter_context(served(event.folder, listener))}")

        def begin(notify: Notify) -> None:
            if settings is not None:
                run_online(settings, command_line(), notify, search, tune)
            else:
                assert resume is not None
                resume_online(resume, notify)

        if settings is not None and settings.profile_only:
            profile_only(settings, display)
            return
        if settings is not None:
            for line in _said_before(settings, search):
                display.line(line)
        ended = measure_and_report(begin, results_so_far, display, show)
    print_end(ended, display, open_report=open_report, as_json=as_json)


def _said_before(settings: OnlineSettings, search: SearchPlan | None) -> Iterator[str]:
    """What a user may want to know before the run begins."""
    if settings.preset_text is not None:
        yield settings.preset_text
    if search is not None:
        if settings.settle is not None:
            yield (
                f"each cell: {settings.settle:g} s to settle, then {settings.measured_s:g} s or more "
                "are measured (--settle, --min-duration)"
            )
        return
    for load in settings.loads if settings.min_duration is None else ():
        if short := few_rounds(load, settings.requests(load)):
            yield f"{short.text}. {MORE_ROUNDS}"
    if more := _more_than_rounds(settings):
        yield more


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
