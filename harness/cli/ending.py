"""The end of a benchmark: verdict, one table, warnings, the report's path, and the exit code."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from pathlib import Path

import typer

from harness.cli.progress import Display
from harness.cli.terminal import FAILED, echo
from harness.errors import BenchError
from harness.report.answer import answer, goodput, terms
from harness.report.notices import facts_of, notices
from harness.report.sections import ranking_of
from harness.report.tables.capacity import capacity_tables
from harness.report.tables.comparisons import noise_tables
from harness.report.tables.rates import offline_table, pooled_table
from harness.report.tables.tuning import tuning_tables
from harness.report.text.numbers import plural
from harness.report.wording import WORDING, notices_of
from harness.runs.reader import Run
from harness.schema.facts import Fact
from harness.schema.results import OnlineResults

#: Warnings in the terminal: the report has them all, and the notes.
MOST_WARNINGS = 3
#: Of a warning's details, in letters; an engine may have the same trouble at many loads.
MOST_DETAIL = 240


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


def conclude(
    run: Run,
    report: Path,
    fault: BenchError | None,
    *,
    as_json: bool,
    open_report: bool,
) -> None:
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
