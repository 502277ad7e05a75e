"""The trend of one statistic, one row a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from harness.history.store import Entry
from harness.history.trend import steps
from harness.metrics import intervals
from harness.report.results_csv import csv_text
from harness.report.tables.latency import withheld_note
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH, change_text, decimals, plural
from harness.schema.metrics import METRICS, statistic_name

_NOTES = (
    "Runs with the same settings on the same hardware, from the oldest to the newest. Change: by how much "
    "the level of the runs from here on differs from that of those before (PELT, penalty 2 σ log n).",
)


def history_table(entries: Sequence[Entry], metric: str, statistic: str) -> Table:
    """Every series of runs: an engine at a load, with settings and hardware alike."""
    name = statistic_name(metric, statistic)
    rows = sorted(entries, key=lambda entry: (entry.label, entry.load.weight, entry.past.alike))
    series = groupby(rows, key=lambda entry: (entry.label, str(entry.load), entry.past.alike))
    pairs = [pair for _, members in series for pair in _cells(list(members))]
    columns = [Column.engine(rows)]
    if len({row.past.machine for row in rows}) > 1:
        columns.append(Column.text("machine", [row.past.machine for row in rows]))
    if len({(row.load.kind, row.load.counts) for row in rows}) > 1:  # which are said in full
        columns.append(Column.text("load", [str(row.load) for row in rows]))
    else:
        columns.append(Column.load(rows))
    columns += [
        Column.text("measured", [row.past.created[:16].replace("T", " ") for row in rows]),
        Column.text("revision", [(row.past.revision or DASH)[:10] for row in rows]),
        Column.text("run", [row.past.name for row in rows]),
        Column(f"{name}, {METRICS[metric].unit}", [value for value, _ in pairs]),
        Column("change", [change for _, change in pairs]),
    ]
    lacking = max(entry.estimate.withheld for entry in entries)
    notes = (*_NOTES, *([withheld_note(statistic, lacking)] if lacking else []))
    return Table("history", f"{name} over time", columns, notes)


def _cells(series: Sequence[Entry]) -> list[tuple[Cell, Cell]]:
    """Return the value of each run of a series and, where a new level begins, the change."""
    shown = [entry.estimate for entry in series if not entry.estimate.withheld]
    changes = steps([estimate.value for estimate in shown])
    places = decimals([estimate.value for estimate in shown])
    cells, place = [], 0
    for entry in series:
        if lacking := entry.estimate.withheld:
            cells.append((Cell(DASH, remark=f"withheld: {plural(lacking, 'more sample')} needed"), Cell("")))
            continue
        change = changes.get(place)
        value = Cell.number(entry.estimate.value, places, intervals.own_interval(entry.estimate))
        cells.append((value, Cell("" if change is None else change_text(change), change)))
        place += 1
    return cells


def history_csv(entries: Sequence[Entry], metric: str, statistic: str) -> str:
    """Return the same as CSV: values with the ends of their 95 % intervals, and `ratio`, the level of
    the runs from here on to that of those before. What too few samples give is left out."""
    table = history_table(entries, metric, statistic)
    rows = []
    for *names, value, change in table.rows:
        run = (cell.text if cell.value is None else cell.value for cell in names)
        rows.append((*run, value.value, *(value.ends or (None, None)), change.value))
    return csv_text([*table.headers[:-1], "lo", "hi", "ratio"], rows)
