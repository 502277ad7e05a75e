"""Rates and failures, one row a cell."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.glossary import GLOSSARY
from harness.report.tables.table import Cell, Column, Table, number_cell
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, decimals
from harness.schema.results import OnlineSummary


def throughput_table(summaries: Sequence[OnlineSummary]) -> Table:
    """Rates and failures, one row an engine and load (and repeat, where the summaries have one)."""
    rates = ["offered_req_per_s", "req_per_s", "output_tok_per_s", "total_tok_per_s"]
    if any(summary.goodput_req_per_s is not None for summary in summaries):
        rates.append("goodput_req_per_s")
    places = {name: decimals(getattr(summary, name) for summary in summaries) for name in rates}
    columns = identity_columns(summaries)
    columns += [Column(GLOSSARY[name].short) for name in rates]
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
        row += [number_cell(getattr(summary, name), places[name]) for name in rates]
        row += [
            number_cell(summary.num_requests, 0),
            number_cell(summary.num_error, 0),
            Cell(errors or DASH),
            valid_cell(summary),
        ]
        rows.append(row)
    return Table("throughput", "Throughput and failures", columns, rows)


def identity_cells(summary: OnlineSummary) -> list[Cell]:
    repeat = [] if summary.repeat is None else [Cell(str(summary.repeat), summary.repeat)]
    return [Cell(summary.label), Cell(load_number(summary.load), summary.load.value), *repeat]


def identity_columns(summaries: Sequence[OnlineSummary]) -> list[Column]:
    columns = [Column("engine", numeric=False), Column(head_of(summary.load for summary in summaries))]
    return [*columns, Column("repeat")] if any(one.repeat is not None for one in summaries) else columns


def valid_cell(summary: OnlineSummary) -> Cell:
    return (
        Cell("yes") if summary.valid else Cell("no", remark="; ".join(summary.invalid_reasons), invalid=True)
    )
