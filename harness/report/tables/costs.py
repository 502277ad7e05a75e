"""What each cell cost: CPU time and energy, one row a cell."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.tables.table import Cell, Column, Table, metric_decimals
from harness.report.tables.throughput import identity_cells, identity_columns
from harness.report.text.numbers import number
from harness.schema.metrics import METRICS
from harness.schema.results import OnlineSummary

_PER_TOKEN = ("cpu_ms_per_output_token", "joules_per_output_token")
_NOTES = (
    "CPU time is that of all processes of the engine, energy by the counters of the GPUs or, where there is "
    "none, of the processors. Both are of the whole cell, whatever part of it is measured.",
)


def costs_table(summaries: Sequence[OnlineSummary]) -> Table | None:
    """One row an engine and load; None where nothing is known of any."""
    if all(summary.engine_cpu_s is None and summary.joules is None for summary in summaries):
        return None
    places = {
        name: metric_decimals(name, (summary.value(name, name) for summary in summaries))
        for name in _PER_TOKEN
    }
    columns = [
        *identity_columns(summaries),
        Column("CPU seconds"),
        Column("joules"),
        *(Column(METRICS[name].label) for name in _PER_TOKEN),
    ]
    rows = []
    for summary in summaries:
        per_token = [(summary.value(name, name), places[name]) for name in _PER_TOKEN]
        known = [(summary.engine_cpu_s, 1), (summary.joules, 0), *per_token]
        rows.append([*identity_cells(summary), *(_known(value, decimals) for value, decimals in known)])
    return Table("costs", "CPU time and energy", columns, rows, _NOTES)


def _known(value: float | None, decimals: int) -> Cell:
    return Cell("unknown") if value is None else Cell(number(value, decimals), value)
