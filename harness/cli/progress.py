"""Shows the progress of a run: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from harness.cli.terminal import Terminal
from harness.metrics.percentiles import missing
from harness.report.tables.accuracy import accuracy_table
from harness.report.tables.latency import latency_table, shown_latencies
from harness.report.tables.noise import noise_tables, planning_tables
from harness.report.tables.offline import offline_table
from harness.report.tables.prefix_hits import prefix_table
from harness.report.tables.speculation import speculation_table
from harness.report.tables.table import Table
from harness.report.tables.throughput import throughput_table
from harness.report.text.heading import fitted
from harness.report.text.numbers import DASH, plural
from harness.runs.events import (
    BatchDone,
    BatchStarting,
    Calibrating,
    CellDone,
    CellProgress,
    EngineSkipped,
    EngineStarting,
    EngineWarming,
    Event,
    Reporting,
    Started,
)
from harness.schema.results import (
    Distribution,
    OfflineResults,
    OnlineResults,
    OnlineSummary,
)

PLAIN_WIDTH = 160


class Display:
    """Prints events to stderr, so that stdout has only the report's path."""

    def __init__(self, console: Terminal, progress: Progress | None, quiet: bool) -> None:
        self._console, self._progress, self._quiet = console, progress, quiet
        self._task: TaskID | None = None
        self._cells = 0
        self._current = -1

    def show(self, event: Event) -> None:
        """Print `event`."""
        if self._quiet:
            return
        match event:
            case Calibrating(what):
                self.line(f"calibrating the client, once for this machine: {what}")
            case Started(folder, cells, done, trace):
                self._cells = cells
                before = f", {done} already measured" if done else ""
                self.line(f"run {folder}: {plural(cells, 'cell')}{before}")
                if trace is not None and (fit_note := fitted(trace)):
                    self.line(fit_note)
            case EngineSkipped(skipped):
                load = "" if skipped.load is None else f", {skipped.load}"
                repeat = "" if skipped.repeat is None else f", repeat {skipped.repeat}"
                self.line(f"skipped {skipped.label}{load}{repeat}: {skipped.reason}", skipped.hint)
            case EngineStarting(label, _):
                self._live(f"{label}: starting", None)
            case EngineWarming(label, ready_s, requests):
                ready = "already running" if ready_s is None else f"ready after {ready_s:.1f} s"
                self.line(f"{label}: {ready}; {plural(requests, 'request')} to warm up")
                self._live(f"{label}: warming up", None)
            case CellProgress(cell, requests, progress):
                if self._progress is None and self._current != cell.index:
                    self.line(f"[{cell.index + 1}/{self._cells}] {cell}: {requests} requests")
                self._current = cell.index
                failed = f", {progress.failed} failed" if progress.failed else ""
                counts = f"{progress.sent} sent, {progress.sent - progress.done} in flight{failed}"
                ttft = f", TTFT p50 {progress.ttft_us / 1e3:.0f} ms" if progress.ttft_us else ""
                self._live(
                    f"[{cell.index + 1}/{self._cells}] {cell}: {counts}{ttft}",
                    requests,
                    progress.done,
                )
            case CellDone(cell, summary):
                self.line(f"[{cell.index + 1}/{self._cells}] {cell}: {_summary(summary)}")
            case BatchStarting(label, repeat, index, total, log):
                self.line(f"[{index + 1}/{total}] {label}, repeat {repeat}; log: {log}")
                self._live(f"[{index + 1}/{total}] {label}, repeat {repeat}", None)
            case BatchDone(result):
                rate = f"{result.output_tok_per_s:,.0f} output tok/s in {result.total_s:.3f} s"
                self.line(f"{result.label}, repeat {result.repeat}: {rate}")
            case Reporting():
                self._live("writing tables, figures and report", None)

    def tables(self, results: OnlineResults | OfflineResults) -> None:
        """Print the results' first tables."""
        self.print_tables(_tables(results))
        if isinstance(results, OnlineResults):
            for summary in results.summaries:
                if summary.repeat is None:
                    for notice in summary.notices:
                        self.line(f"notice: {summary.label}, {summary.load}: {notice.text}")

    def print_tables(self, tables: Sequence[Table]) -> None:
        """Print tables, one below the other."""
        if self._quiet:
            return
        for table in tables:
            self._console.print(rich_table(table))
            for line in (*table.legend, *table.notes):
                self._console.print(line)

    def line(self, text: str, hint: str = "") -> None:
        """Print a line of text, and a hint."""
        if self._quiet:
            return
        self._console.print(text + (f"\n  hint: {hint}" if hint else ""))

    def _live(self, text: str, total: int | None, done: int = 0) -> None:
        if self._progress is None:
            return
        if self._task is None:
            self._task = self._progress.add_task("")
        self._progress.update(self._task, description=text, total=total, completed=done)


@contextmanager
def make_display(quiet: bool) -> Iterator[Display]:
    """A display on stderr, live where that is a terminal."""
    console = Terminal(stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False)
    if not console.is_terminal or quiet:
        if not console.is_terminal:
            console.width = PLAIN_WIDTH
        yield Display(console, None, quiet)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Display(console, progress, quiet)


def rich_table(table: Table) -> RichTable:
    """A table for a terminal. Text is not parsed as markup."""
    rich = RichTable(title=Text(table.title), title_justify="left")
    for column, head in zip(table.columns, table.headers, strict=True):
        rich.add_column(Text(head), justify="right" if column.numeric else "left")
    for line in table.lines:
        rich.add_row(*map(Text, line))
    return rich


def _tables(results: OnlineResults | OfflineResults) -> list[Table]:
    if isinstance(results, OfflineResults):
        return [offline_table(results.results)]
    pooled = [summary for summary in results.summaries if summary.repeat is None]
    metrics = shown_latencies(pooled)
    found = [*(latency_table(pooled, metric) for metric in metrics), throughput_table(pooled)]
    if prefixes := prefix_table(results.prefixes):
        found.append(prefixes)
    if drafted := speculation_table(results.speculation, results.summaries):
        found.append(drafted)
    if results.accuracy is not None:
        found.append(accuracy_table(results.accuracy))
    more = noise_tables if results.meta.settings.aa else planning_tables
    return found + more(results.comparisons)


def _summary(summary: OnlineSummary) -> str:
    if not summary.num_success:
        return f"all {summary.num_requests} requests failed: {summary.errors}"
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
    parts += [f"INVALID: {reason}" for reason in summary.invalid_reasons]
    parts += [f"NOTICE: {notice.text}" for notice in summary.notices]
    return ", ".join(parts)


def _pair(distribution: Distribution) -> str:
    """p50 and p99, or the highest percentile that the sample supports."""
    known = [q for q in (50, 90, 99) if distribution.n and not missing(q, distribution.n)]
    shown = dict.fromkeys([*known[:1], *known[-1:]])
    return " ".join(f"p{q} {getattr(distribution, f'p{q}'):.1f}" for q in shown) or DASH
