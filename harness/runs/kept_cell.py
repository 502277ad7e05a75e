"""Keep a measured cell: its raw tables, its line in the journal, its summary."""

from __future__ import annotations

from harness.files import now
from harness.metrics.prefixes import prefix_hits
from harness.metrics.summary import summarize
from harness.records.cell import CellRecords
from harness.records.parquet import write_cell
from harness.runs.events import CellDone, Notify
from harness.runs.journal import JournalEntry
from harness.runs.run_state import Run
from harness.runs.schedule import Cell
from harness.schema.online_summary import OnlineSummary


def entry_of(cell: Cell, records: CellRecords) -> JournalEntry:
    """Return the journal entry of a cell that has just been measured."""
    ref = cell.engine_variant.ref
    return JournalEntry(
        cell=cell.index,
        engine=ref.name,
        variant=ref.variant,
        label=cell.engine_variant.label,
        load=cell.load,
        repeat=cell.repeat,
        finished=now(),
        requests=len(records.requests),
        failed=int(records.requests["error"].notna().sum()),
        start=cell.start,
    )


def keep_cell(
    run: Run, cell: Cell, records: CellRecords, entry: JournalEntry, notify: Notify
) -> OnlineSummary:
    """Write the raw tables of a cell, then its entry in the journal, and return its summary."""
    write_cell(run.folder, cell.index, records)
    run.finish(entry)
    settings = run.settings
    counts = {} if entry.prefix_cache is None else {cell.index: entry.prefix_cache}
    machines = {} if entry.machine is None else {cell.index: entry.machine}
    [summary, *_] = summarize(
        records.requests,
        records.chunks,
        slo=settings.slo,
        cut=settings.cut,
        calibration=run.calibration,
        machines=machines,
        wanted_s=settings.measured_s,
        prefixes=prefix_hits(records.requests, counts),
        drafted=entry.drafted,
    )
    notify(CellDone(cell, summary))
    return summary
