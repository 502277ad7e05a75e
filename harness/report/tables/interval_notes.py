"""What the intervals of a table are of, and why a number has none."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.tables.table import INTERVALS, Cell
from harness.report.text.numbers import few
from harness.schema.online_summary import OnlineSummary

NO_INTERVAL = "no interval: too few independent requests"
_MARKED = "Marks compare repeats, which are independent."


def why_no_interval(pooled: Sequence[OnlineSummary], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Of a table with intervals, why some percentile has none, and why it is marked as best nevertheless."""
    cells = [cell for row in rows for cell in row]
    without = [cell for cell in cells if NO_INTERVAL in cell.remark]
    if not without or not any(cell.interval for cell in cells):
        return []
    marked = any(cell.best for cell in without) and not any(map(_is_single, pooled))
    return [f"{NO_INTERVAL.capitalize()}.{f' {_MARKED}' if marked else ''}"]


def intervals_text(pooled: Sequence[OnlineSummary], *, rates: bool = True) -> str:
    """What intervals are of: of one repeat they say nothing about the next, and its `rates` have none."""
    single = [summary for summary in pooled if _is_single(summary)]
    if not single:
        return INTERVALS
    if len(single) == len([summary for summary in pooled if summary.num_success]):
        return f"{INTERVALS} within the one repeat{'; rates have none' if rates else ''}"
    labels = list(dict.fromkeys(summary.label for summary in single))
    none = ", where rates have none" if rates else ""
    if all(_is_single(s) for s in pooled if s.label in labels and s.num_success):
        return f"{INTERVALS}; of {few(labels)} within the one repeat{none}"
    return f"{INTERVALS}; where an engine has one repeat, within it{none.replace('where', 'and')}"


def _is_single(summary: OnlineSummary) -> bool:
    """Whether it is of one repeat, which has no interval of a rate."""
    return summary.num_success > 0 and not summary.rates_ci
