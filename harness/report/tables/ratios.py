"""Every engine over a chosen one: ratios with their intervals, and which of them are real."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.best import better, differs, excludes_one, says_nothing, valid_labels
from harness.report.tables.latency import SHOWN
from harness.report.tables.table import TOO_WIDE, Cell, Column, Table
from harness.report.text.claims import not_significant
from harness.report.text.numbers import DASH, with_ends
from harness.schema.metrics import METRICS
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Comparison

#: What is marked.
REAL = "Better than the baseline by more than chance, at 5 % for all comparisons of the run together."


def ratios(
    comparisons: Sequence[Comparison],
    metric: str,
    baseline: str,
    labels: Sequence[str],
    pooled: Sequence[OnlineSummary],
) -> Table:
    """`engine / baseline` for each load and percentile; marked where the engine is really better.

    An invalid cell is not compared.
    """
    valid = valid_labels(pooled)
    found = {
        (comparison.load, comparison.statistic, pair): comparison
        for comparison in comparisons
        if comparison.metric == metric and {comparison.a, comparison.b} <= valid[comparison.load]
        for pair in ((comparison.a, comparison.b), (comparison.b, comparison.a))
        if pair[1] == baseline
    }
    keys = [(load, f"p{q}") for load in sorted({summary.load for summary in pooled}) for q in SHOWN]
    measure = f"{METRICS[metric].label}, ratio to {baseline}"
    columns = [Column(statistic, str(load), measure=measure) for load, statistic in keys]
    rows = [
        [Cell(label), *(_cell(found.get((*key, (label, baseline))), label) for key in keys)]
        for label in labels
        if label != baseline
    ]
    title = f"{METRICS[metric].label}, ratio to {baseline}"
    heads = [Column("engine", numeric=False), *columns]
    return Table(f"{metric}-ratios", title, heads, rows, best=REAL)


def _cell(comparison: Comparison | None, label: str) -> Cell:
    if comparison is None:
        return Cell(DASH, remark="not compared: not measured, or invalid")
    if comparison.ci is None:
        return Cell(DASH, remark="withheld: the samples are too small")
    ratio, (low, high) = comparison.ratio, comparison.ci
    if comparison.b == label:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    size, *ends = with_ends(ratio, (low, high))
    real = differs(comparison)
    chance = not_significant(comparison) if excludes_one(comparison.ci) else "no difference shown"
    remark = "a real difference" if real else chance
    return Cell(
        f"{size if ratio < 10 else f'{ratio:.1f}'}×",
        ratio,
        TOO_WIDE if says_nothing(comparison.ci) else "–".join(ends),
        remark,
        best=real and better(comparison) == label,
        ends=(low, high),
    )
