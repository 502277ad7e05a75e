"""`journal.jsonl`: one line for every finished cell, synced before the next cell begins."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_core import from_json

from harness.errors import UsageError
from harness.files import naming, read_limited, sync_folder
from harness.plain_text import visible, visible_content
from harness.schema.base import Strict, first_fault
from harness.schema.fairness import ReportedMean
from harness.schema.files import MAX_JSON
from harness.schema.load import Load
from harness.schema.machines import HostCell, MachineLoad
from harness.schema.results import OnlineSummary, PrefixCount, Speculation, SpeculationCount


class ClientSpent(Strict):
    """CPU and wall time of one client process between the load's start and its end, in seconds."""

    client: int
    cpu_s: float
    wall_s: float


class JournalEntry(Strict):
    """A finished cell. A cell that is not in the journal did not happen, whatever files there are of it."""

    cell: int = Field(ge=0, description="its number in the run, and the `cell` of its records")
    engine: str
    variant: str | None = None
    label: str
    load: Load
    repeat: int
    finished: str = Field(description="ISO 8601, UTC")
    requests: int = 0
    failed: int = 0
    clients: list[ClientSpent] = Field(default_factory=list, description="one a client process")
    prefix_cache: PrefixCount | None = Field(
        None, description="by the engine's counters; null where it does not report any"
    )
    speculation: SpeculationCount | None = Field(
        None, description="by the engine's counters; null where it drafts nothing or does not report it"
    )
    reported: dict[str, ReportedMean] = Field(
        default_factory=dict, description="means by the engine's own histograms, by metric"
    )
    machine: MachineLoad | None = Field(None, description="what the machine did meanwhile")
    node: str | None = Field(None, description="of a cluster: where the engine ran")
    senders: list[HostCell] = Field(default_factory=list, description="of a cluster: the nodes that sent it")
    prompt_nonce: int | None = Field(
        None, description="of a running server, in place of that of the settings; null: as they have it"
    )
    late_before: list[float] = Field(
        default_factory=list,
        description="submit lag in ms of what was measured before and does not count, as the client was late",
    )
    start: int | None = Field(
        None, description="of a search: which start of the engine's server measured it, from 0"
    )

    summary: OnlineSummary | None = Field(
        None, description="figures of the cell by itself; null: of a run of an earlier version"
    )

    @property
    def figures(self) -> OnlineSummary:
        """Summary of the cell. Raises UsageError where the journal has none."""
        if self.summary is None:
            raise UsageError(
                f"the journal has no figures of {self.label}, {self.load}: an earlier version wrote it",
                "start a new run",
            )
        return self.summary

    @property
    def drafted(self) -> list[Speculation]:
        """Speculative decoding as the results have it, by the engine's report; none or one."""
        if self.speculation is None:
            return []
        place = {"engine": self.engine, "variant": self.variant, "label": self.label}
        return [Speculation(**place, load=self.load, repeat=self.repeat, count=self.speculation)]


def watched(entries: Iterable[JournalEntry]) -> dict[int, MachineLoad]:
    """Return the load of the machine in each cell in which it was watched."""
    return {entry.cell: entry.machine for entry in entries if entry.machine is not None}


def read_journal(path: Path) -> list[JournalEntry]:
    """Entries in the order in which they were written; none where there is no file.

    A last line without its end was being written when the run was killed: it does not count.

    Raises:
        UsageError: A line before the last is no entry.
    """
    if not path.exists():
        return []
    lines = read_limited(path, MAX_JSON).split(b"\n")[:-1]
    entries: list[JournalEntry] = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(JournalEntry.model_validate(visible_content(from_json(line))))
        except ValueError as error:
            fault = first_fault(error) if isinstance(error, ValidationError) else f"Invalid JSON: {error}"
            raise UsageError(
                f"{path}, line {number}: {fault}", "restore the file, or repeat the run"
            ) from None
    return entries


def append_journal(path: Path, entry: JournalEntry) -> None:
    """Add a line and sync it; what a killed run left of a line is cut off first."""
    path.touch()
    with naming(path), path.open("r+b") as file:
        whole = file.read().rfind(b"\n") + 1
        file.seek(whole)
        file.truncate()
        file.write(visible(entry.model_dump_json()).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
