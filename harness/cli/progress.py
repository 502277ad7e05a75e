"""Shows the progress of a run: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from harness.cli.terminal import Terminal
from harness.cli.terminal_table import TerminalTable
from harness.metrics.percentiles import missing
from harness.report.tables.table import Table
from harness.report.text.heading import fitted
from harness.report.text.numbers import DASH, plural
from harness.report.wording import lacking, reason_text, repeats_line
from harness.runs.events import (
    Calibrating,
    CellDone,
    CellProgress,
    CellsExpected,
    ConfigurationDropped,
    EngineNotAsked,
    EngineSkipped,
    EngineStarting,
    EngineWarming,
    Event,
    LateClient,
    RepeatsNeeded,
    Reporting,
    Started,
    TooFewClients,
    WarmupProgress,
)
from harness.schema.base import repeat_text
from harness.schema.load import Batch
from harness.schema.results import BatchRow, Distribution, OnlineSummary


class Display:
    """Prints events to stderr, so that stdout has only the report's path.

    A start and a cell are a line each; a terminal has those of later repeats only where a cell is invalid. It
    has two more at its bottom, which are gone at the end. The bar is of what happens now: the requests of a
    warm-up or of a cell; without a number of them it moves to and fro. The times are of the whole run, and
    what is left follows from the share of its cells, or batches, that is done: in the first cell without the
    engine's start, as so little of the cell is done.
    """

    def __init__(self, console: Terminal) -> None:
        self._console = console
        self._status = Text("", no_wrap=True, overflow="ellipsis")
        self._bar = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[times]}"),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task("", total=None, count="", times="")
        self._live = Live(self, console=console, transient=True, refresh_per_second=4)
        self._cells, self._before, self._measured = 0, 0, 0
        self._first, self._done_share = 0.0, 0.0
        self._began = self._since = monotonic()
        self._calibrating, self._begun = False, set[str]()  # engines by their label

    def __enter__(self) -> Display:
        if self._console.is_terminal and not self._console.quiet:
            self._live.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._live.stop()

    def __rich__(self) -> Group:
        elapsed, spent = monotonic() - self._began, monotonic() - self._since
        share = self._done_share
        remaining = clock(spent * (1 / share - 1)) if 0 < share < 1 else "-:--"
        self._bar.update(self._task, times=f"{clock(elapsed)} elapsed, {remaining} left")
        return Group(self._status, self._bar)

    def show(self, event: Event) -> None:
        """Print `event`."""
        match event:
            case Calibrating(what):
                if not self._calibrating:
                    self.line("calibrating the client, once for this machine")
                self._calibrating = True
                self._now(f"calibrating the client: {what}")
            case Started(folder, cells, done, trace, about):
                self._cells, self._before = cells, done
                before = f", {done} already measured" if done else ""
                self.line(f"run {folder}: {'about ' if about else ''}{plural(cells, 'cell')}{before}")
                if trace is not None and (fit_note := fitted(trace)):
                    self.line(fit_note)
            case EngineSkipped(skipped):
                load = "" if skipped.load is None else f", {skipped.load}"
                repeat = "" if skipped.repeat is None else f", {repeat_text(skipped.repeat)}"
                self.line(f"skipped {skipped.label}{load}{repeat}: {skipped.reason}", skipped.hint)
            case EngineNotAsked(unasked):
                place = f"{lacking(unasked)}, {repeat_text(unasked.repeat)}"
                self.line(f"{place}: {unasked.reason}", unasked.hint)
            case EngineStarting(label, _):
                self._now(f"{label}: starting; a first start may compile kernels")
            case EngineWarming(label, ready_s, requests):
                ready = "already running" if ready_s is None else f"ready after {ready_s:.1f} s"
                if label not in self._begun:  # later starts are alike
                    self.line(f"{label}: {ready}; {plural(requests, 'request')} to warm up")
                self._begun.add(label)
                self._now(f"{label}: warming up", 0, requests)
            case WarmupProgress(label, requests, done):
                self._now(f"{label}: warming up", done, requests)
            case CellProgress(cell, requests, progress):
                self._first = self._first or monotonic()
                failed = f", {progress.failed} failed" if progress.failed else ""
                counts = f"{progress.sent - progress.completed} in flight{failed}"
                ttft = f", TTFT p50 {progress.ttft_us / 1e3:.0f} ms" if progress.ttft_us else ""
                self._now(
                    f"[{cell.index + 1}/{self._cells}] {cell}: {counts}{ttft}", progress.completed, requests
                )
                since = None if self._measured else self._first
                self._share(self._measured + progress.completed / max(requests, 1), since)
            case TooFewClients(cell, clients, more):
                few = f"{clients} client {'process is' if clients == 1 else 'processes are'} too few"
                self.line(f"{cell}: {few}, measuring again with {more}")
            case LateClient(cell, late):
                self._now(f"{cell}: the client was late, measuring again: {reason_text([late])}")
            case CellDone(cell, summary):
                self._measured += 1
                self._share(self._measured)
                if cell.repeat == 0 or not (summary.valid and self._console.is_terminal):
                    self.text(f"[{cell.index + 1}/{self._cells}] {cell}: {_summary(summary)}")
            case RepeatsNeeded(contrasts):
                self.line(repeats_line(contrasts))
            case CellsExpected(cells):
                self._cells = cells
            case ConfigurationDropped(label, repeats):
                self.line(f"{label} is left out after {plural(repeats, 'repeat')}")
            case Reporting():
                self._share(0)
                self._now("writing tables, figures and report")

    def text(self, text: str) -> None:
        """Print sentences: in a terminal wrapped between words, elsewhere on one line."""
        self._console.print(text, soft_wrap=not self._console.is_terminal)

    def print_tables(self, tables: Sequence[Table]) -> None:
        """Print tables, one below the other."""
        for table in tables:
            self._console.print(TerminalTable(table))
            if remarks := " ".join((*table.legend, *table.notes)):
                self.text(remarks)

    def line(self, text: str, hint: str = "") -> None:
        """Print a line of text, and a hint."""
        self._console.print(text + (f"\n  hint: {hint}" if hint else ""))

    def _now(self, text: str, completed: int = 0, requests: int | None = None) -> None:
        self._status.plain = text
        count = "" if requests is None else f"{completed}/{requests} requests"
        self._bar.update(self._task, count=count, completed=completed, total=requests)

    def _share(self, cells: float, since: float | None = None) -> None:
        """Show that `cells` of the cells that this command measures are done, since then."""
        self._done_share = cells / max(self._cells - self._before, 1)
        self._since = self._began if since is None else since


def clock(seconds: float) -> str:
    """Return `1:05`, or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def make_display(quiet: bool) -> Display:
    """Return a display on stderr; a quiet one shows nothing."""
    return Display(Terminal(stderr=True, soft_wrap=True, quiet=quiet))


def _summary(summary: OnlineSummary) -> str:
    if not summary.num_requests:
        return f"INVALID: {reason_text(summary.invalid_reasons)}"
    if not summary.num_success:
        return f"all {summary.num_requests} requests failed: {summary.errors}"
    if isinstance(summary.load, Batch):
        row = BatchRow.of(summary)
        return f"{row.output_tok_per_s:,.0f} output tok/s in {row.total_s:.3f} s"
    parts = [f"TTFT {_pair(summary.ttft_ms)} ms", f"TPOT {_pair(summary.tpot_ms)} ms"]
    parts.append(f"{summary.output_tok_per_s:.0f} tok/s")
    if summary.num_error:
        parts.append(f"{summary.num_error} failed {summary.errors}")
    if summary.left_out:
        parts.append(f"{summary.left_out} requests outside the window are not counted")
    if summary.late_turns:
        parts.append(
            f"{summary.late_turns} of {summary.later_turns} later turns waited for the previous answer"
        )
    only_late = {reason.kind for reason in summary.invalid_reasons} == {"late"}
    verdict = "CLIENT LATE, the end of the run says whether it matters" if only_late else "INVALID"
    parts += [f"{verdict}: {reason_text([reason])}" for reason in summary.invalid_reasons]
    parts += [
        f"NOTICE: {reason_text([fact])}"
        for fact in summary.notices
        if fact.kind != "unreported"  # alike for all cells: the run's end says it once
    ]
    return ", ".join(parts)


def _pair(distribution: Distribution) -> str:
    """p50 and p99, or the highest percentile that the sample supports."""
    supported = [q for q in (50, 90, 99) if distribution.n and not missing(q, distribution.n)]
    shown = dict.fromkeys([*supported[:1], *supported[-1:]])
    return " ".join(f"p{q} {getattr(distribution, f'p{q}'):.1f}" for q in shown) or DASH
