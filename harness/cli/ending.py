"""The end of a benchmark in the terminal: verdict, one table, warnings. The rest is in the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.cli.faults import is_pressed_again
from harness.cli.progress import Display
from harness.errors import BenchError
from harness.metrics.rankings import best_labels
from harness.report.answer import answer, goodput, terms
from harness.report.notices import notices
from harness.report.render import write_without_figures
from harness.report.sections import ranking_of
from harness.report.tables.capacity import capacity_tables
from harness.report.tables.comparisons import noise_tables
from harness.report.tables.latency import overview_table
from harness.report.tables.offline import offline_table
from harness.report.tables.tuning import tuning_tables
from harness.report.text.numbers import plural
from harness.runs.reader import Run

#: Warnings in the terminal; a run in which everything went wrong has many.
MOST_WARNINGS = 8
#: Of a warning's details, in letters; an engine may have the same trouble at many loads.
MOST_DETAIL = 240


def report_so_far(load: Callable[[], Run | None], display: Display) -> tuple[Run, Path] | None:
    """An interrupted run and the report of what was measured; None where there is none, or the user does not
    wait for it.

    Args:
        load: Returns the run with the results that it has; None: they show nothing yet.
    """
    try:
        if is_pressed_again() or (run := load()) is None:
            return None
        display.line("interrupted: writing the report of what is measured; Ctrl-C again ends at once")
        return run, write_without_figures(run)
    except KeyboardInterrupt:
        return None
    except BenchError as error:
        display.line(f"there is no report: {error.message}", error.hint)
        return None


def print_ending(run: Run, display: Display) -> None:
    """Print it to stderr. An A/A run also has a table of its noise."""
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
        best = best_labels(run.pooled, run.results.comparisons)
        display.print_tables([ranking_of(run) or overview_table(run, best)])
        if run.meta.settings.aa:
            display.print_tables(noise_tables(run.results.comparisons, run.meta.launches))
    display.text("")
    warnings = notices(run)
    for notice in warnings[:MOST_WARNINGS]:
        display.text(f"warning: {notice.title} {_first_sentences(notice.detail)}")
    if more := len(warnings[MOST_WARNINGS:]):
        display.text(f"{plural(more, 'more warning')} {'is' if more == 1 else 'are'} in the report")


def _first_sentences(detail: str) -> str:
    """Return the sentences that fit, and an ellipsis for the others; the report has them all."""
    if len(detail) <= MOST_DETAIL:
        return detail
    end = detail.rfind(". ", 0, MOST_DETAIL)
    return f"{detail[: end + 1]} …" if end > 0 else detail
