"""The offline batch as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from harness.metrics.digits import per_cent
from harness.metrics.intervals import LEVEL
from harness.metrics.primary import RATE
from harness.metrics.rankings import batch_ranking, excludes_one
from harness.report.tables.table import Cell, Column, Table, metric_decimals, number_cell
from harness.report.text.heading import ways_asked
from harness.report.text.numbers import DASH, plural
from harness.report.text.provenance import assumed_of_rates
from harness.report.wording import not_significant
from harness.schema.base import repeat_text
from harness.schema.metrics import METRICS, rates
from harness.schema.results import BatchRow, Comparison, OnlineResults

#: What is marked.
MOST = "More output tokens a second than every other row, at 5 % for all comparisons of the run together."

#: A smaller p-value is not written out.
SMALLEST_P = 0.001


def offline_table(run: OnlineResults) -> Table:
    """The offline batch: one row an engine, the mean of its repeats."""
    results = run.results
    by_label: dict[str, list[BatchRow]] = {}
    for result in results:
        by_label.setdefault(result.label, []).append(result)
    names = _shown(results)
    rows = {
        label: [fmean(getattr(result, name) or 0.0 for result in found) for name in names]
        for label, found in by_label.items()
    }
    most = max((len(found) for found in by_label.values()), default=1)
    notes = [f"Means of {most} repeats."] if most > 1 else []
    if ways := ways_asked(run.meta.launches):
        notes.append(f"Measured: {ways}.")
    batches = {label: [result.batches for result in found] for label, found in by_label.items()}
    if any(count > 1 for counts in batches.values() for count in counts):
        each = (f"{label} {'/'.join(map(str, counts))}" for label, counts in batches.items())
        notes.append(f"Batches run, one after the other: {', '.join(each)}. Seconds are of one on average.")
    cells = _offline_rows(names, rows.items())
    if (ranking := batch_ranking(run)) is not None:
        best, *others = ranking.rows
        if others and all(row.significant for row in others):
            at = 1 + names.index(RATE)
            row = next(row for row in cells if row[0].text == best.label)
            row[at] = replace(row[at], best=True)
    return Table("offline", "Offline throughput", _offline_columns(names), cells, notes, best=MOST)


def batch_ratios_table(run: OnlineResults) -> Table:
    """Every pair of engines: the ratio of their output tokens a second, with its interval and the verdict."""
    heads = ("pair", "ratio", "95 % interval", "p", "verdict")
    columns = [Column(head, numeric=head == "ratio") for head in heads]
    together = plural(len(run.comparisons), "comparison")
    notes = [
        "Each repeat has prompts of its own, the same for all engines. So engines are compared repeat by "
        "repeat: Student's t on the logarithms of the ratios gives intervals and p-values. "
        f"p and the verdicts hold for {together} together, at {per_cent(LEVEL)} (Holm).",
    ]
    if any(min(found.repeats) == 1 for found in run.comparisons):
        spread = f"a spread of {assumed_of_rates} is assumed"
        notes.append(f"One repeat does not show how repeats differ: {spread}.")
    rows = [_ratio_row(found) for found in run.comparisons]
    return Table("offline-ratios", "Output tokens a second, engines compared", columns, rows, notes)


def _ratio_row(found: Comparison) -> list[Cell]:
    verdict = "no difference shown"
    if found.verdict != "no difference":
        verdict = f"{found.a if found.verdict == 'better' else found.b} is faster"
    elif excludes_one(found.ci):
        verdict = not_significant(found.comparisons)
    return [
        Cell(f"{found.a} / {found.b}"),
        Cell(f"{found.ratio:.3f}", found.ratio),
        Cell(DASH if found.ci is None else f"{found.ci[0]:.3f} to {found.ci[1]:.3f}"),
        _p_cell(found.adjusted_p),
        Cell(verdict),
    ]


def _p_cell(p: float | None) -> Cell:
    """A p-value with three decimals; `< 0.001` of a smaller one."""
    return number_cell(p, 3) if p is None or p >= SMALLEST_P else Cell(f"< {SMALLEST_P}", p)


def offline_repeats_table(results: Sequence[BatchRow]) -> Table:
    """The offline batch, every repeat by itself."""
    names = _shown(results)
    rows = [
        (f"{result.label}, {repeat_text(result.repeat)}", [getattr(result, name) or 0.0 for name in names])
        for result in results
    ]
    return Table("offline-repeats", "Each repeat", _offline_columns(names), _offline_rows(names, rows))


def _shown(results: Sequence[BatchRow]) -> list[str]:
    """Rates of the registry; one that is like another only where an engine has other values of it."""
    return [
        name
        for name in rates("offline")
        if not (like := METRICS[name].like)
        or any(getattr(result, name) not in (None, getattr(result, like)) for result in results)
    ]


def _offline_columns(names: Sequence[str]) -> list[Column]:
    return [Column("engine", numeric=False), *(Column(METRICS[name].label) for name in names)]


def _offline_rows(names: Sequence[str], rows: Iterable[tuple[str, list[float]]]) -> list[list[Cell]]:
    known = list(rows)
    places = [
        metric_decimals(name, (values[column] for _, values in known)) for column, name in enumerate(names)
    ]
    return [[Cell(label), *map(number_cell, values, places)] for label, values in known]
