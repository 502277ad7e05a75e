"""The ranking as a table: at each load and by each metric the best value, and the others' ratio to it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.contrast import compared_by
from harness.metrics.rankings import Ranking, RankingRow, headlines
from harness.report.tables.table import TOO_WIDE, WIDEST, Cell, Column, Table, stacked
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, decimals, number, with_ends
from harness.schema.metrics import METRICS

BEST = "Best, and better than another engine at 5 % for all comparisons of the run together."
INTERVALS = "95 % intervals of the ratio to the best value"


def ranking_table(rankings: Sequence[Ranking]) -> Table:
    """Rows a load and engine, the best by the first metric first; a column a metric."""
    shown = list(dict.fromkeys(ranking.load for ranking in rankings if ranking.load is not None))
    metrics = list(dict.fromkeys(name for load in shown for name in compared_by(load)))
    metrics += [each.metric for each in rankings if each.headline and each.metric not in metrics][:1]
    parts = []
    for load in shown:
        first = {ranking.metric: ranking for ranking in headlines(rankings, load)}
        at_load = [*first.values()] or [ranking for ranking in rankings if ranking.load == load]
        labels = [row.label for row in at_load[0].rows] if at_load else []
        percentiles = [ranking.statistic for ranking in first.values() if METRICS[ranking.metric].is_latency]
        shared = percentiles[0] if percentiles else ""
        place = Cell(load_number(load), load.value)
        columns = [
            Column.text("engine", labels),
            Column(head_of(shown), [place for _ in labels]),
            Column.text("latency", [shared or DASH for _ in labels]),
        ]
        for metric in metrics:
            cells = [_cell(first.get(metric), label, shared) for label in labels]
            columns.append(Column(METRICS[metric].label, cells, kept=not METRICS[metric].is_latency))
        parts.append(columns)
    count = max((ranking.comparisons for ranking in rankings), default=0)
    notes = [f"{count} comparisons were made at once."] if count > 1 else []
    return Table("rankings", "Ranking", stacked(parts), notes, best=BEST, intervals=INTERVALS)


def _cell(ranking: Ranking | None, label: str, shared: str) -> Cell:
    row = None if ranking is None else ranking.row(label)
    if ranking is None or row is None or row.value is None:
        return Cell(DASH, remark="not compared")
    term = METRICS[ranking.metric]
    statistic = f" ({ranking.statistic})" if term.is_latency and ranking.statistic != shared else ""
    value = f"{number(row.value, decimals([row.value]))} {term.unit}{statistic}".strip()
    if not row.valid:
        return Cell(value, row.value, remark="invalid, not compared", invalid=True)
    if ranking.best is not None and ranking.best.label == label:
        return Cell(value, row.value, best=ranking.winner is not None)
    return _ratio_cell(row, value)


def _ratio_cell(row: RankingRow, value: str) -> Cell:
    if row.ratio is None:
        return Cell(value, row.value, remark="not compared")
    if row.ratio_interval is None:
        return Cell(f"{row.ratio:.2f}×", row.value, remark=value)
    size, *ends = with_ends(row.ratio, row.ratio_interval)
    low, high = row.ratio_interval
    interval = TOO_WIDE if high > WIDEST * max(low, 0.0) else "–".join(ends)
    return Cell(f"{size}×", row.value, interval, value, significant=bool(row.significant))
