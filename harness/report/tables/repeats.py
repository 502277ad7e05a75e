"""Every cell by itself, of one run or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.report.tables.latency import latency_decimals, loads_of, percentiles_cell, withheld_notes
from harness.report.tables.table import Cell, Column, Table, metric_decimals, number_cell
from harness.report.tables.throughput import identity_cells, identity_columns, valid_cell
from harness.schema.metrics import METRICS, latencies, rates
from harness.schema.online_summary import OnlineSummary

_LATENCIES = tuple(name for name in latencies("tables") if "overview" in METRICS[name].uses)
_RATES = rates("headline")
#: Whether a cell is valid stands first: the last columns of a wide table are out of sight.
_MEASURED = (
    Column("valid", numeric=False),
    *(Column(f"{METRICS[name].label} {METRICS[name].unit}") for name in _LATENCIES),
    *(Column(METRICS[name].label) for name in _RATES),
)


def repeats_table(summaries: Sequence[OnlineSummary]) -> Table:
    """Every cell by itself: latencies as `p50/p90/p99`, and the rates that matter most."""
    rows = [
        [*identity_cells(summary), *cells]
        for summary, cells in zip(summaries, _measured(summaries), strict=True)
    ]
    columns = [*identity_columns(summaries), *_MEASURED]
    return Table("repeats", "Each repeat, p50/p90/p99", columns, rows, withheld_notes(summaries, _LATENCIES))


def all_runs_table(pooled: Mapping[str, Sequence[OnlineSummary]]) -> Table:
    """Every engine of several runs, by their names, at every load: what `repeats` has, loads ascending.

    Decimals are alike at a load, since two loads can be a hundred times apart.
    """
    every = [(run, summary) for run, summaries in pooled.items() for summary in summaries]
    rows = []
    for load in loads_of([summary for _, summary in every]):
        here = [(run, summary) for run, summary in every if summary.load == load]
        rows += [
            [Cell(summary.label), Cell(run), Cell(str(load), load.value), *cells]
            for (run, summary), cells in zip(here, _measured([s for _, s in here]), strict=True)
        ]
    columns = [Column("engine", numeric=False), Column("run", numeric=False), Column("load"), *_MEASURED]
    return Table(
        "all-runs",
        "All online runs, p50/p90/p99",
        columns,
        rows,
        withheld_notes([summary for _, summary in every], _LATENCIES),
    )


def _measured(summaries: Sequence[OnlineSummary]) -> list[list[Cell]]:
    """For each, the cells under `_MEASURED`; decimals are alike down a column."""
    places = {name: latency_decimals(summaries, name) for name in _LATENCIES}
    places |= {
        name: metric_decimals(name, (summary.value(name, name) for summary in summaries)) for name in _RATES
    }
    return [
        [
            valid_cell(summary),
            *(percentiles_cell(summary, name, places[name]) for name in _LATENCIES),
            *(
                replace(number_cell(summary.value(name, name), places[name]), invalid=not summary.valid)
                for name in _RATES
            ),
        ]
        for summary in summaries
    ]
