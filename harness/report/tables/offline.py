"""The offline batch as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from harness.report.tables.table import Cell, Column, Table, metric_decimals, number_cell
from harness.schema.metrics import METRICS, rates
from harness.schema.results import OfflineResult

_COLUMNS = rates("offline")


def offline_table(results: Sequence[OfflineResult]) -> Table:
    """The offline batch: one row an engine, the mean of its repeats."""
    by_label: dict[str, list[OfflineResult]] = {}
    for result in results:
        by_label.setdefault(result.label, []).append(result)
    rows = {
        label: [fmean(getattr(result, name) for result in found) for name in _COLUMNS]
        for label, found in by_label.items()
    }
    most = max((len(found) for found in by_label.values()), default=1)
    notes = [f"Means of {most} repeats."] if most > 1 else []
    batches = {label: [result.batches for result in found] for label, found in by_label.items()}
    if any(count > 1 for counts in batches.values() for count in counts):
        each = (f"{label} {'/'.join(map(str, counts))}" for label, counts in batches.items())
        notes.append(f"Batches run, one after the other: {', '.join(each)}. Seconds are of one on average.")
    return Table("offline", "Offline throughput", _offline_columns(), _offline_rows(rows.items()), notes)


def offline_repeats_table(results: Sequence[OfflineResult]) -> Table:
    """The offline batch, every repeat by itself."""
    rows = [
        (f"{result.label}, repeat {result.repeat}", [getattr(result, name) for name in _COLUMNS])
        for result in results
    ]
    return Table("offline-repeats", "Each repeat", _offline_columns(), _offline_rows(rows))


def _offline_columns() -> list[Column]:
    return [Column("engine", numeric=False), *(Column(METRICS[name].label) for name in _COLUMNS)]


def _offline_rows(rows: Iterable[tuple[str, list[float]]]) -> list[list[Cell]]:
    known = list(rows)
    places = [
        metric_decimals(name, (values[column] for _, values in known)) for column, name in enumerate(_COLUMNS)
    ]
    return [[Cell(label), *map(number_cell, values, places)] for label, values in known]
