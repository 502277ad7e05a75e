"""The offline batch as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from harness.report.tables.table import Cell, Column, Table, metric_decimals, number_cell
from harness.schema.metrics import METRICS, rates
from harness.schema.repeat_number import repeat_text
from harness.schema.results import OfflineResult


def offline_table(results: Sequence[OfflineResult]) -> Table:
    """The offline batch: one row an engine, the mean of its repeats."""
    by_label: dict[str, list[OfflineResult]] = {}
    for result in results:
        by_label.setdefault(result.label, []).append(result)
    names = _shown(results)
    rows = {
        label: [fmean(getattr(result, name) or 0.0 for result in found) for name in names]
        for label, found in by_label.items()
    }
    most = max((len(found) for found in by_label.values()), default=1)
    notes = [f"Means of {most} repeats."] if most > 1 else []
    batches = {label: [result.batches for result in found] for label, found in by_label.items()}
    if any(count > 1 for counts in batches.values() for count in counts):
        each = (f"{label} {'/'.join(map(str, counts))}" for label, counts in batches.items())
        notes.append(f"Batches run, one after the other: {', '.join(each)}. Seconds are of one on average.")
    return Table(
        "offline", "Offline throughput", _offline_columns(names), _offline_rows(names, rows.items()), notes
    )


def offline_repeats_table(results: Sequence[OfflineResult]) -> Table:
    """The offline batch, every repeat by itself."""
    names = _shown(results)
    rows = [
        (f"{result.label}, {repeat_text(result.repeat)}", [getattr(result, name) or 0.0 for name in names])
        for result in results
    ]
    return Table("offline-repeats", "Each repeat", _offline_columns(names), _offline_rows(names, rows))


def _shown(results: Sequence[OfflineResult]) -> list[str]:
    """Rates of the registry; one that is like another only where an engine has other values of it."""
    return [
        name
        for name in rates("offline")
        if not (like := METRICS[name].like)
        or any(getattr(result, name) not in (None, getattr(result, like)) for result in results)
    ]


def _offline_columns(names: Sequence[str]) -> list[Column]:
    return [Column("engine", numeric=False), *(Column(METRICS[name].label) for name in names)]


def _offline_rows(names: Sequence[str], rows: Iterable[tuple[str, list[float]]]) -> list[list[Cell]]:
    known = list(rows)
    places = [
        metric_decimals(name, (values[column] for _, values in known)) for column, name in enumerate(names)
    ]
    return [[Cell(label), *map(number_cell, values, places)] for label, values in known]
