"""`bench online`, `offline`, `search` and `tune`, from their first cell to the report.

Apart from the commands, because it imports what takes a second, which help and the shell's completion need
not wait for.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import typer

from harness.cli.command_line import clear_process_list, command_line
from harness.cli.faults import is_pressed_again, refused, save_first
from harness.cli.live_server import listen, served
from harness.cli.options import Output
from harness.cli.profile import profile_after, profile_only
from harness.cli.progress import Display, make_display
from harness.cli.terminal import FAILED, echo
from harness.cli.trust import check_run
from harness.errors import BenchError, BusyMachineError, InterruptedRunError, NothingMeasuredError
from harness.metrics.validity import few_rounds
from harness.profiling.plan import unprofiled
from harness.report.answer import answer, goodput, terms
from harness.report.notices import facts_of, notices
from harness.report.render import write_outputs, write_without_figures
from harness.report.sections import ranking_of
from harness.report.tables.capacity import capacity_tables
from harness.report.tables.comparisons import noise_tables
from harness.report.tables.rates import offline_table, pooled_table
from harness.report.tables.tuning import tuning_tables
from harness.report.text.numbers import plural, several
from harness.report.wording import WORDING, notices_of
from harness.runs.events import Calibrating, Event, Prepared, Started
from harness.runs.folder import resume_command
from harness.runs.online import results_so_far, resume_online, run_online
from harness.runs.reader import Run, load_unmeasured
from harness.schema.facts import Fact
from harness.schema.load import ClosedLoop
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from harness.schema.search import SearchPlan
from harness.schema.tune import TunePlan
from harness.telemetry.machine import busy_programs

#: Share of the cores that others use, from which on it is said, and above which nothing is measured unasked.
WORTH_SAYING, MUCH = 0.1, 0.5
#: Warnings in the terminal: the report has them all, and the notes.
MOST_WARNINGS = 3
#: Of a warning's details, in letters; an engine may have the same trouble at many loads.
MOST_DETAIL = 240


def measure(
    settings: OnlineSettings | None,
    output: Output,
    search: SearchPlan | None = None,
    tune: TunePlan | None = None,
) -> None:
    """Run, or finish the run `output.resume`, show its progress, write its report and print where that is.

    Raises:
        BenchError: There is no report, or something failed after it was written.
    """
    clear_process_list()
    if output.resume is not None:
        check_run(output.resume, output.trust)
    with make_display(output.quiet) as display, ExitStack() as stack:
        lookout = Lookout(display, not output.anyway and (settings is None or settings.cluster is None))
        listener = None if output.serve is None else stack.enter_context(listen(output.serve))
        if settings is not None and settings.profile_only:
            profile_only(settings, display, lookout)
            return
        if settings is not None:
            for line in _said_before(settings, search):
                display.line(line)
        watcher, run, fault = _Watcher(display, lookout, stack, listener), None, None
        try:
            if settings is not None:
                run = run_online(settings, command_line(), watcher, search, tune)
            else:
                assert output.resume is not None
                run = resume_online(output.resume, watcher)
            report = write_outputs(run)
        except KeyboardInterrupt:
            run, report, fault = _after_interruption(watcher, run)
        except NothingMeasuredError as error:
            run, report, fault = _nothing_measured(watcher, error)
        except BenchError as error:
            raise _with_way_on(watcher, error) from None
        except OSError as error:
            way_on = watcher.folder and refused(error, _finish(watcher.folder))
            raise way_on or error from None
        if fault is None:
            fault = _profiled(run, display)
    if not isinstance(fault, NothingMeasuredError):
        print_ending(run, display)
    conclude(run, report, fault, as_json=output.as_json, open_report=output.open_report)


def look_at_machine(display: Display) -> None:
    """Say which programs keep this machine busy.

    Raises:
        BusyMachineError: They take over half of the cores.
    """
    for seconds in (0.5, 2.0):  # a burst may be over by the second look
        busy = busy_programs(seconds)
        if busy.share <= MUCH:
            break
    if busy.share < WORTH_SAYING:
        return
    names = ", ".join(f"{name} {100 * cores:.0f} %" for name, cores in busy.programs.items())
    line = f"{plural(busy.of, 'core')}, other programs use {busy.cores:.1f}{f' ({names})' if names else ''}"
    if busy.share > MUCH:
        raise BusyMachineError(f"{line}: results would be invalid", "wait until they end, or add --anyway")
    display.line(line)


@dataclass
class Lookout:
    """Shows the events of a run, and before what is measured first, if that `is_due`, looks at the machine.
    Raises BusyMachineError then."""

    display: Display
    is_due: bool

    def __call__(self, event: Event) -> None:
        if self.is_due and isinstance(event, Calibrating | Prepared):
            self.is_due = False
            look_at_machine(self.display)
        self.display.show(event)


@dataclass
class _Watcher:
    """Shows the events of a run, serves its live page from when it has a folder, and remembers the folder."""

    display: Display
    lookout: Lookout
    stack: ExitStack
    listener: socket | None
    folder: Path | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.folder = event.folder
            save_first()
            check_run(event.folder, trust=True)
        self.lookout(event)
        if isinstance(event, Started) and self.listener is not None:
            page = self.stack.enter_context(served(event.folder, self.listener))
            self.display.line(f"live page: {page}")


def _after_interruption(watcher: _Watcher, run: Run | None) -> tuple[Run, Path, BenchError]:
    """Report what an interrupted run has; a second Ctrl-C ends at once.

    Raises:
        InterruptedRunError: It has nothing to show, or the user does not wait for the report.
    """
    folder = watcher.folder
    if folder is None:
        raise KeyboardInterrupt
    fault = InterruptedRunError("interrupted; every finished cell is saved", _finish(folder))
    try:
        if is_pressed_again() or (run := run or results_so_far(folder)) is None:
            raise fault from None
        watcher.display.line("interrupted: writing the report of what is measured; Ctrl-C again ends at once")
        return run, write_without_figures(run), fault
    except KeyboardInterrupt:
        raise fault from None
    except InterruptedRunError:
        raise
    except BenchError as error:
        watcher.display.line(f"there is no report: {error.message}", error.hint)
        raise fault from None


def _nothing_measured(watcher: _Watcher, error: NothingMeasuredError) -> tuple[Run, Path, BenchError]:
    """Report why no cell was measured."""
    assert watcher.folder is not None
    failed = load_unmeasured(watcher.folder)
    return failed, write_without_figures(failed), _with_way_on(watcher, error)


def _with_way_on(watcher: _Watcher, error: BenchError) -> BenchError:
    """Add to an error's hint how to go on with a run that has begun."""
    if watcher.folder is not None:
        after = "start a new run" if error.new_run else _finish(watcher.folder)
        error.hint = "; then ".join(filter(None, (error.hint, after)))
    return error


def _profiled(run: Run, display: Display) -> BenchError | None:
    """Profile a run where that was asked for. Returns the error that ended it."""
    tools = run.meta.settings.profile
    engines = unprofiled(run.path, run.results, tools) if tools is not None else []
    return profile_after(run, tools, display, engines) if tools is not None and engines else None


def _finish(folder: Path) -> str:
    return f"finish the run with `{resume_command(folder)}`"


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
        for notice in notices_of(few_rounds(load, settings.requests(load))):
            yield notice.detail
    if more := _more_than_rounds(settings):
        yield more


def _more_than_rounds(settings: OnlineSettings) -> str:
    """Return a line on loads where --n sends more than --rounds asks for; empty if there are none."""
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


# --- The end: verdict, one table, warnings, the report's path, and the exit code -----------------------


def print_ending(run: Run, display: Display) -> None:
    """Print the verdict, one table and warnings to stderr. An A/A run also has a table of its noise."""
    display.text("")
    for sentence in filter(None, [*map(str, answer(run)), goodput(run), *terms(run)]):
        display.text(sentence)
    display.text("")
    if run.is_batch:
        display.print_tables([offline_table(run.results)])
    elif run.results.search is not None:
        display.print_tables(capacity_tables(run.results.search))
    elif run.results.tune is not None:
        display.print_tables(tuning_tables(run.results.tune))
    else:
        display.print_tables([ranking_of(run) or pooled_table(run.pooled)])
        if run.meta.settings.aa:
            display.print_tables(noise_tables(run.results.comparisons, run.meta.launches))
    display.text("")
    warnings = [notice for notice in notices_of(_deciding(run)) if notice.severity != "note"][:MOST_WARNINGS]
    for notice in warnings:
        display.text(f"warning: {notice.title} {notice.wording.hint or _first_sentences(notice.detail)}")
    if notes := len(notices(run)) - len(warnings):
        display.text(f"{plural(notes, 'note')} in the report")


def _deciding(run: Run) -> Iterator[Fact]:
    """Facts that may change what a run says: nothing on limits that its load does not reach, nor on answers
    that there are no others to compare with."""
    for fact in facts_of(run):
        is_alone = fact.kind in ("answers_unchecked", "unchecked_answers") and len(run.engines) == 1
        if WORDING[fact.kind].severity == "invalid" or not (is_alone or fact.values.get("ample")):
            yield fact


def _first_sentences(detail: str) -> str:
    """Return the sentences that fit, and an ellipsis for the others; the report has them all."""
    if len(detail) <= MOST_DETAIL:
        return detail
    end = detail.rfind(". ", 0, MOST_DETAIL)
    return f"{detail[: end + 1]} …" if end > 0 else detail


def conclude(run: Run, report: Path, fault: BenchError | None, *, as_json: bool, open_report: bool) -> None:
    """Print the report's path or the results, alone, to stdout.

    Exits with 3 when something failed or no cell is valid (docs/faq.md).

    Raises:
        BenchError: `fault`, the error of the profiling after the benchmark.
    """
    if as_json:
        sentences = [*map(str, answer(run))] if run.has_results else []
        echo(run.results.model_copy(update={"answer": sentences}).model_dump_json(indent=2))
    else:
        echo(report)
    if open_report:
        webbrowser.open(report.resolve().as_uri())
    if fault is not None:
        raise fault
    if _failed(run.results):
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
