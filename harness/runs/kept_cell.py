"""Keep a measured cell: its raw tables, its summary, its line in the journal."""

from __future__ import annotations

from typing import TypedDict

from harness.files import now
from harness.metrics.prefixes import prefix_hits
from harness.metrics.summary import summarize
from harness.records.cell import CellRecords
from harness.records.parquet import write_cell
from harness.runs.events import CellDone, Notify
from harness.runs.journal import ClientSpent, JournalEntry
from harness.runs.run_state import Run
from harness.runs.schedule import Cell
from harness.schema.fairness import ReportedMean
from harness.schema.machines import HostCell, MachineLoad
from harness.schema.results import OnlineSummary, PrefixCount, Speculation, SpeculationCount


class Kept(TypedDict, total=False):
    """Fields of a journal entry that not every cell has."""

    clients: list[ClientSpent]
    prefix_cache: PrefixCount | None
    speculation: SpeculationCount | None
    reported: dict[str, ReportedMean]
    machine: MachineLoad | None
    node: str | None
    senders: list[HostCell]
    prompt_nonce: int | None


def keep_cell(run: Run, cell: Cell, records: CellRecords, kept: Kept, notify: Notify) -> OnlineSummary:
    """Write the raw tables of a cell, then its entry in the journal, and return its summary."""
    write_cell(run.folder, cell.index, records)
    settings, ref = run.settings, cell.engine_variant.ref
    counts = {cell.index: count} if (count := kept.get("prefix_cache")) else {}
    machines = {cell.index: machine} if (machine := kept.get("machine")) else {}
    label, drafted = cell.engine_variant.label, kept.get("speculation")
    place = {"engine": ref.name, "variant": ref.variant, "label": label}
    [summary, *_] = summarize(
        records.requests,
        records.chunks,
        slo=settings.slo,
        cut=settings.cut,
        calibration=run.calibration,
        machines=machines,
        wanted_s=settings.measured_s,
        prefixes=prefix_hits(records.requests, counts),
        drafted=[]
        if drafted is None
        else [Speculation(**place, load=cell.load, repeat=cell.repeat, count=drafted)],
    )
    entry = JournalEntry(
        cell=cell.index,
        **place,
        load=cell.load,
        repeat=cell.repeat,
        finished=now(),
        requests=len(records.requests),
        failed=int(records.requests["error"].notna().sum()),
        start=cell.start,
        summary=summary,
        **kept,
    )
    run.finish(entry)
    notify(CellDone(cell, summary))
    return summary
