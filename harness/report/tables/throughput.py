"""Rates and failures, one row a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.report.tables.table import Cell, Column, Table, metric_decimals, number_cell, repeat_cell
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH
from harness.schema.load import ClosedLoop
from harness.schema.metrics import METRICS, rates
from harness.schema.online_summary import OnlineSummary


def throughput_table(summaries: Sequence[OnlineSummary]) -> Table:
    """Rates and failures, one row an engine and load (and repeat, where the summaries have one)."""
    shown = [name for name in rates_of(summaries) if _has_own(summaries, name)]
    places = {
        name: metric_decimals(name, (summary.value(name, name) for summary in summaries)) for name in shown
    }
    columns = identity_columns(summaries)
    columns += [Column(METRICS[name].label) for name in shown]
    columns += [
        Column("requests"),
        Column("failed"),
        Column("errors", numeric=False),
        Column("valid", numeric=False),
    ]
    rows = []
    for summary in summaries:
        errors = ", ".join(f"{kind} {count}" for kind, count in summary.errors.items())
        row = identity_cells(summary)
        row += [
            replace(number_cell(summary.value(name, name), places[name]), invalid=not summary.valid)
            for name in shown
        ]
        row += [
            number_cell(summary.num_requests, 0),
            number_cell(summary.num_error, 0),
            Cell(errors or DASH),
            valid_cell(summary),
        ]
        rows.append(row)
    return Table("throughput", "Throughput and failures", columns, rows)


def rates_of(summaries: Sequence[OnlineSummary]) -> list[str]:
    """Rates that tables have: a closed loop offers what is answered."""
    closed = all(isinstance(summary.load, ClosedLoop) for summary in summaries)
    return [name for name in rates("tables") if not (closed and name == "offered_req_per_s")]


def _has_own(summaries: Sequence[OnlineSummary], name: str) -> bool:
    """Whether any summary has the rate, and of one that is `like` another more than that one."""
    like = METRICS[name].like
    values = [(summary.value(name, name), like and summary.value(like, like)) for summary in summaries]
    return any(value is not None and value != other for value, other in values)


def identity_cells(summary: OnlineSummary) -> list[Cell]:
    repeat = [] if summary.repeat is None else [repeat_cell(summary.repeat)]
    return [Cell(summary.label), Cell(load_number(summary.load), summary.load.value), *repeat]


def identity_columns(summaries: Sequence[OnlineSummary]) -> list[Column]:
    columns = [Column("engine", numeric=False), Column(head_of(summary.load for summary in summaries))]
    return (
        [*columns, Column("repeat")] if any(summary.repeat is not None for summary in summaries) else columns
    )


def valid_cell(summary: OnlineSummary) -> Cell:
    return Cell("yes") if summary.valid else Cell("no", remark="; ".join(summary.invalid_reasons))
