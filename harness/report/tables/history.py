"""The trend of one statistic, one row a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from harness.history.store import Entry
from harness.history.trend import steps
from harness.metrics.intervals import own
from harness.report.results_csv import Data
from harness.report.tables.latency import withheld_note
from harness.report.tables.table import Cell, Column, Table, interval_text
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, change_text, decimals, number, plural
from harness.schema.metrics import METRICS

_NOTES = (
    "Runs with the same settings on the same hardware, from the oldest to the newest. Change: by how much "
    "the level of the runs from here on differs from that of those before (PELT, penalty 2 σ log n).",
)


def history_table(entries: Sequence[Entry], metric: str, statistic: str) -> Table:
    """Every series of runs: an engine at a load, with settings and hardware alike."""
    named = METRICS[metric].label + ("" if statistic == metric else f" {statistic}")
    several_machines = len({entry.past.machine for entry in entries}) > 1
    mixed = len({(entry.load.kind, entry.load.counts) for entry in entries}) > 1
    columns = [
        Column("engine", numeric=False),
        *([Column("machine", numeric=False)] if several_machines else []),
        Column("load", numeric=False) if mixed else Column(head_of(entry.load for entry in entries)),
        Column("measured", numeric=False),
        Column("revision", numeric=False),
        Column("run", numeric=False),
        Column(f"{named}, {METRICS[metric].unit}"),
        Column("change"),
    ]

    def series(entry: Entry) -> tuple[str, str, str]:
        return entry.label, str(entry.load), entry.past.alike

    rows = []
    ordered = sorted(entries, key=lambda entry: (entry.label, entry.load.weight, entry.past.alike))
    for _, group in groupby(ordered, key=series):
        members = list(group)
        shown = [entry for entry in members if not entry.estimate.withheld]
        changes = steps([entry.estimate.value for entry in shown])
        changed = {id(shown[place]): change for place, change in changes.items()}
        places = decimals([entry.estimate.value for entry in shown])
        rows += [_row(entry, places, changed.get(id(entry)), mixed, several_machines) for entry in members]
    lacking = max(entry.estimate.withheld for entry in entries)
    notes = (*_NOTES, *([withheld_note(statistic, lacking)] if lacking else []))
    return Table("history", f"{named} over time", columns, rows, notes)


def history_data(entries: Sequence[Entry], metric: str, statistic: str) -> Data:
    """The same as numbers: the value with the ends of its 95 % interval, and `ratio`, the level of the runs
    from here on to that of those before. What too few samples give is left out."""
    table = history_table(entries, metric, statistic)
    *heads, value, _ = table.headers
    rows = []
    for *known, shown, change in table.rows:
        names = (
            cell.value if column.numeric else cell.text
            for cell, column in zip(known, table.columns, strict=False)
        )
        rows.append((*names, shown.value, *(shown.ends or (None, None)), change.value))
    return Data([*heads, value, "lo", "hi", "ratio"], rows)


def _row(entry: Entry, places: int, change: float | None, mixed: bool, several_machines: bool) -> list[Cell]:
    """`mixed`: loads of several kinds are said in full."""
    if lacking := entry.estimate.withheld:
        value = Cell(DASH, remark=f"withheld: {plural(lacking, 'more sample')} needed")
    else:
        ends = own(entry.estimate)
        estimate = entry.estimate.value
        value = Cell(number(estimate, places), estimate, interval_text(ends, places), ends=ends)
    return [
        Cell(entry.label),
        *([Cell(entry.past.machine)] if several_machines else []),
        Cell(str(entry.load) if mixed else load_number(entry.load), entry.load.value),
        Cell(entry.past.created[:16].replace("T", " ")),
        Cell((entry.past.revision or DASH)[:10]),
        Cell(entry.past.name),
        value,
        Cell("" if change is None else change_text(change), change),
    ]
