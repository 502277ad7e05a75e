"""The offline batch as tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from harness.metrics.digits import per_cent
from harness.metrics.intervals import LEVEL
from harness.metrics.rankings import batch_ranking, excludes_one
from harness.report.tables.rates import rate_columns
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.heading import ways_asked
from harness.report.text.numbers import DASH, plural
from harness.report.text.provenance import assumed_of_rates
from harness.report.wording import not_significant
from harness.schema.metrics import METRICS, rates
from harness.schema.results import BatchRow, Comparison, OnlineResults

#: The meaning of the mark.
MOST = "More output tokens a second than every other row, at 5 % for all comparisons of the run together."

#: A smaller p-value is not written out.
SMALLEST_P = 0.001


def offline_table(run: OnlineResults) -> Table:
    """The offline batch: one row an engine, the mean of its repeats."""
    by_label: dict[str, list[BatchRow]] = {}
    for row in run.results:
        by_label.setdefault(row.label, []).append(row)
    most = max(map(len, by_label.values()), default=1)
    notes = [f"Means of {most} repeats."] if most > 1 else []
    if ways := ways_asked(run.meta.launches):
        notes.append(f"Measured: {ways}.")
    if any(row.batches > 1 for row in run.results):
        counts = {label: "/".join(str(row.batches) for row in rows) for label, rows in by_label.items()}
        each = ", ".join(f"{label} {batches}" for label, batches in counts.items())
        notes.append(f"Batches run, one after the other: {each}. Seconds are of one on average.")
    ranking = batch_ranking(run)
    ranked = ranking.rows if ranking is not None else []
    winner = ranked[0].label if ranked[1:] and all(row.significant for row in ranked[1:]) else None
    columns = [
        column.marked(
            "best",
            (column.title == METRICS[rates("headline")[0]].label and label == winner for label in by_label),
        )
        for column in _columns(list(map(_mean, by_label.values())))
    ]
    return Table("offline", "Offline throughput", columns, notes, best=MOST)


def _mean(repeats: Sequence[BatchRow]) -> BatchRow:
    """Return the first of the repeats with the mean of all for each rate that all have."""
    values = {name: [getattr(row, name) for row in repeats] for name in rates("offline")}
    return repeats[0].model_copy(
        update={name: fmean(each) for name, each in values.items() if None not in each}
    )


def _columns(rows: Sequence[BatchRow]) -> list[Column]:
    """Return the engines and their rates."""
    return [Column.text("engine", [row.label for row in rows]), *rate_columns(rows, rates("offline"))]


def offline_repeats_table(rows: Sequence[BatchRow]) -> Table:
    """The offline batch, every repeat by itself."""
    engine, *measured = _columns(rows)
    return Table(
        "offline-repeats", "Each repeat", [engine, Column.repeat([row.repeat for row in rows]), *measured]
    )


def batch_ratios_table(run: OnlineResults) -> Table:
    """Every pair of engines: the ratio of their output tokens a second, with its interval and the verdict."""
    pairs = run.comparisons
    together = plural(len(pairs), "comparison")
    notes = [
        "Each repeat has prompts of its own, the same for all engines. So engines are compared repeat by "
        "repeat: Student's t on the logarithms of the ratios gives intervals and p-values. "
        f"p and the verdicts hold for {together} together, at {per_cent(LEVEL)} (Holm).",
    ]
    if any(min(pair.repeats) == 1 for pair in pairs):
        spread = f"a spread of {assumed_of_rates} is assumed"
        notes.append(f"One repeat does not show how repeats differ: {spread}.")
    intervals = [DASH if pair.ci is None else f"{pair.ci[0]:.3f} to {pair.ci[1]:.3f}" for pair in pairs]
    columns = [
        Column.text("pair", [f"{pair.a} / {pair.b}" for pair in pairs]),
        Column("ratio", [Cell(f"{pair.ratio:.3f}", pair.ratio) for pair in pairs]),
        Column.text("95 % interval", intervals),
        Column("p", [_p_cell(pair.adjusted_p) for pair in pairs], numeric=False),
        Column.text("verdict", map(_verdict, pairs)),
    ]
    return Table("offline-ratios", "Output tokens a second, engines compared", columns, notes)


def _verdict(pair: Comparison) -> str:
    if pair.verdict != "no difference":
        return f"{pair.a if pair.verdict == 'better' else pair.b} is faster"
    return not_significant(pair.comparisons) if excludes_one(pair.ci) else "no difference shown"


def _p_cell(p: float | None) -> Cell:
    """Make the cell of a p-value with three decimals; `< 0.001` of a smaller one."""
    return Cell.number(p, 3) if p is None or p >= SMALLEST_P else Cell(f"< {SMALLEST_P}", p)
