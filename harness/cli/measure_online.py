"""`bench online`, `search` and `tune` once their settings are known.

Apart from the commands, because it imports what takes a second, which help and the shell's completion need
not wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from harness.cli.command_line import clear_process_list, command_line
from harness.cli.live_server import listen, served
from harness.cli.measure import measure_and_report, print_end
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
    """Yield lines that a user may want to read before the run begins."""
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
    """Say where --n sends more than --rounds needs; empty if it does not."""
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
