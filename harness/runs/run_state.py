"""A run on disk: what it was asked, what of it is measured, and what was left out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Self

from pydantic import TypeAdapter

from harness.engines.base import EngineVariant
from harness.engines.selection import make_engine_variants
from harness.errors import NothingMeasuredError, UsageError
from harness.files import now, write_json, write_whole
from harness.metrics.samples import Group
from harness.metrics.summary import SummaryInputs, prefix_hits, summarize
from harness.plain_text import visible
from harness.records.cell import CellRecords
from harness.records.parquet import write_cell
from harness.runs.events import CellDone, Notify
from harness.runs.folder import JOURNAL, REQUESTS_TABLE, RUN, SKIPPED, read_info
from harness.runs.journal import JournalEntry, append_journal, read_journal, watched
from harness.runs.schedule import Cell, Done, grid_blocks, measured_cells
from harness.schema.fairness import EngineFact
from harness.schema.files import read_if_there
from harness.schema.load import Load
from harness.schema.machines import Calibration
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Skipped
from harness.schema.run_info import Check, LaunchRecord, RunInfo, Unasked
from harness.schema.setting_types import RUNNING_SERVER

_SKIPPED = TypeAdapter(list[Skipped])


@dataclass
class Run:
    """A run and its folder. Every change is on disk before the method returns.

    `skipped` holds the engines that were not there when the run began (no repeat), which stay left out, and
    every cell that failed, in whichever part of the run; `entries` the journal. `clients` is the
    most client processes of one of its cells.
    """

    folder: Path
    info: RunInfo
    skipped: list[Skipped] = field(default_factory=list)
    entries: list[JournalEntry] = field(default_factory=list)
    #: Cells that failed since the run was begun or resumed.
    failed: list[Skipped] = field(default_factory=list)
    #: Held by whoever changes a file of the run: blocks may be measured side by side.
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False, kw_only=True)
    clients: int = 0
    #: By engine and load: how many requests a closed loop was measured with; None: as many as the settings
    #: say. The next repeat starts with these and needs no trial.
    request_counts: dict[tuple[str, Load], int | None] = field(default_factory=dict)
    #: In the seeds of a running server's prompts in place of the settings' nonce; None: as they have it.
    nonce: int | None = None
    #: Cells whose node was lost, and when (monotonic).
    lost: list[tuple[float, Skipped]] = field(default_factory=list)
    #: Whether the user, or an error elsewhere, ends the run: what fails from then on is no fault of its cell.
    is_ending: bool = False

    @classmethod
    def create(cls, folder: Path, info: RunInfo, missing: list[Skipped]) -> Self:
        """A run that begins in an empty folder."""
        run = cls(folder, info, list(missing))
        info.order = list(dict.fromkeys((cell.engine_variant.label, cell.repeat) for cell in run.cells()))
        run._keep_skipped()
        write_json(folder / RUN, info)  # last: a folder with it holds a whole run
        return run

    @classmethod
    def open(cls, folder: Path) -> Self:
        """A run that was begun before.

        Raises:
            UsageError: There is none, nothing was to be measured, or its files do not belong together.
        """
        info = read_info(folder)
        if info.kind == "offline" and not info.order:
            raise UsageError(f"nothing was to be measured in the run in {folder}", "start a new run")
        run = cls(folder, info, read_skipped(folder))
        run._read_journal()
        return run

    @property
    def absent(self) -> set[str]:
        """The labels of the engines that were not there when the run began."""
        return {fault.label for fault in self.skipped if fault.is_whole_engine}

    def first_launch(self, label: str) -> LaunchRecord | None:
        """Return what an engine was started with the first time."""
        return next((launch for launch in self.info.launches if launch.label == label), None)

    def launched(self, record: LaunchRecord) -> None:
        """Keep what an engine was started with the first time, what code and how soon it was ready each time.

        Raises:
            UsageError: It is a running server that serves another model now, or is of another version.
        """
        with self.lock:
            first = self.first_launch(record.label)
            if first is not None and first.engine == RUNNING_SERVER:
                served, now = first.settings.get("model"), record.settings.get("model")
                if served != now:
                    raise UsageError(
                        f"{record.label} served {served} in the run and serves {now} now",
                        "serve that model again, or start a new run",
                    )
                if None not in (then := first.version, record.version) and then != record.version:
                    reason = f"{record.label} was version {then} in the run and is {record.version} now"
                    raise UsageError(reason, "start that version again, or a new run")
            if first is None:
                self.info.launches.append(record)
            elif record.ready_s is not None:
                first.later_ready_s.append(record.ready_s)
                first.codes += [code for code in record.codes if code not in first.codes]
            else:
                return
            write_json(self.folder / RUN, self.info)

    def nothing_measured(self) -> NothingMeasuredError:
        """Return the reasons why no cell was measured, each once."""
        faults = [fault for fault in self.skipped if not fault.is_whole_engine]
        hints = dict.fromkeys(fault.hint for fault in faults if fault.hint)
        return NothingMeasuredError(
            f"nothing could be measured: {'; '.join(_reasons(faults))}",
            "; ".join(hints),
            new_run=any(fault.new_run for fault in faults),
        )

    def _keep_skipped(self) -> None:
        dumped = _SKIPPED.dump_json(self.skipped, indent=2).decode()
        write_whole(self.folder / SKIPPED, visible(dumped).encode() + b"\n")

    @property
    def settings(self) -> OnlineSettings:
        """Settings as resolved when the run began."""
        return self.info.settings

    @property
    def settings_now(self) -> OnlineSettings:
        """The settings with the nonce of what is measured now."""
        nonce = {} if self.nonce is None else {"prompt_nonce": self.nonce}
        return self.settings.model_copy(update=nonce)

    @property
    def calibration(self) -> Calibration | None:
        """Limits of the run's client processes; None where they were not measured."""
        return self.info.client_calibration

    @property
    def engine_variants(self) -> list[EngineVariant]:
        """The engines that were there when the run began."""
        return [v for v in make_engine_variants(self.settings) if v.label not in self.absent]

    def cells(self) -> list[Cell]:
        """Every cell of the run, measured or not: the same whenever it is asked, but for the prompts of a
        running server, which it may have answered before the run was resumed.

        A search or tuning has those that are measured: what comes next depends on them.
        """
        if self.info.is_adaptive:
            return measured_cells(self.engine_variants, self.entries)
        blocks = grid_blocks(self.settings_now, self.engine_variants)
        return [cell for block in blocks for cell in block.cells]

    @property
    def done(self) -> set[int]:
        """Numbers of the cells in the journal."""
        return {entry.cell for entry in self.entries}

    @property
    def state(self) -> Done:
        """The run as a plan sees it."""
        with self.lock:
            return Done(list(self.entries), list(self.failed))

    def knows(self, label: str, name: str) -> bool:
        """Return True if that fact of an engine is known."""
        return any(name in launch.facts for launch in self.info.launches if launch.label == label)

    def keep_fact(self, label: str, name: str, fact: EngineFact) -> None:
        """Keep a fact of a launched engine."""
        with self.lock:
            for launch in self.info.launches:
                if launch.label == label:
                    launch.facts[name] = fact
            write_json(self.folder / RUN, self.info)

    def to_ask(self, label: str, repeat: int, what: list[Check], reason: str = "", hint: str = "") -> Unasked:
        """Keep what an engine is to be asked after its cells of a repeat; with a reason, what it was not."""
        unasked = Unasked(label=label, repeat=repeat, what=what, reason=reason, hint=hint)
        with self.lock:
            others = [old for old in self.info.unasked if (old.label, old.repeat) != (label, repeat)]
            self._keep_unasked([*others, unasked] if what or reason else others)
        return unasked

    def left_to_ask(self, label: str, repeat: int) -> list[Check]:
        """Return the checks that an engine was not asked yet after its cells of a repeat."""
        checks = (old.what for old in self.info.unasked if (old.label, old.repeat) == (label, repeat))
        return list(next(checks, ()))

    def asked(self, label: str, repeat: int, check: Check) -> None:
        """Keep that an engine was asked. Accuracy counts for the whole run, as do all servers of a search."""
        whole = check == "accuracy" or self.info.search is not None
        with self.lock:
            unasked = []
            for entry in self.info.unasked:
                if entry.label == label and (whole or entry.repeat == repeat) and check in entry.what:
                    entry = entry.model_copy(update={"what": [what for what in entry.what if what != check]})
                    if not entry.what:
                        continue
                unasked.append(entry)
            self._keep_unasked(unasked)

    def interrupted(self, *, is_so: bool) -> None:
        """Keep whether the user ended it early."""
        if self.info.interrupted != is_so:
            self.info.interrupted = is_so
            write_json(self.folder / RUN, self.info)

    def keep(self, cell: Cell, records: CellRecords, group: Group, notify: Notify, **fields: Any) -> None:
        """Write the raw tables of a measured cell, then its entry in the journal, with these fields."""
        write_cell(self.folder, cell.index, records)
        failed = int(records.requests["error"].notna().sum())
        entry = JournalEntry(
            **vars(cell.identity),
            finished=now(),
            requests=len(records.requests),
            failed=failed,
            start=cell.start,
            **fields,
        )
        counted = {} if entry.prefix_cache is None else {cell.index: entry.prefix_cache}
        inputs = SummaryInputs(
            slo=self.settings.slo,
            calibration=self.calibration,
            machines=watched([entry]),
            wanted_s=self.settings.measured_s,
            prefixes=prefix_hits([group], counted),
            drafted=entry.drafted,
            server=records.server,
        )
        [summary, *_] = summarize([group], inputs)
        entry.summary = summary
        with self.lock:
            append_journal(self.folder / JOURNAL, entry)
            self._take(entry)
        notify(CellDone(cell, summary))

    def skip(self, fault: Skipped, *, lost_node: bool = False) -> None:
        """A cell failed; with `lost_node`, as its node was lost."""
        with self.lock:
            if self.is_ending:
                return
            if lost_node:
                self.lost.append((monotonic(), fault))
            self.skipped = [old for old in self.skipped if place(old) != place(fault)]
            self.skipped.append(fault)
            self.failed.append(fault)
            self._keep_skipped()

    def end_early(self, moment_s: float = 5.0) -> None:
        """The run ends before its last cell. Nodes that were lost in the last `moment_s` ended for the same
        reason, so their cells did not fail: the run did not come to them."""
        with self.lock:
            self.is_ending = True
            since = monotonic() - moment_s
            lost = [fault for when, fault in self.lost if when > since]
            self.lost.clear()
            if lost:
                self.skipped = [fault for fault in self.skipped if fault not in lost]
                self._keep_skipped()

    def left_out(self) -> list[Skipped]:
        """Return what the results lack. A cell that failed at first and was measured later is not missing."""
        done = {(entry.label, entry.load, entry.repeat) for entry in self.entries}
        return [fault for fault in self.skipped if place(fault) not in done]

    def _keep_unasked(self, unasked: list[Unasked]) -> None:
        if unasked != self.info.unasked:
            self.info.unasked = unasked
            write_json(self.folder / RUN, self.info)

    def _take(self, entry: JournalEntry) -> None:
        self.entries.append(entry)
        self.clients = max(self.clients, len(entry.clients))

    def _read_journal(self) -> None:
        """Take the entries of the journal. Raises UsageError."""
        entries = read_journal(self.folder / JOURNAL)
        if not entries and (self.folder / REQUESTS_TABLE).exists():
            raise UsageError(
                f"{self.folder} has raw times and nothing in {JOURNAL}, so it is not known what they are of",
                "restore the file, or start a new run",
            )
        adaptive = self.info.is_adaptive
        cells = measured_cells(self.engine_variants, entries) if adaptive else self.cells()
        places = {(cell.index, cell.engine_variant.label, cell.load, cell.repeat) for cell in cells}
        for entry in entries:
            if (entry.cell, entry.label, entry.load, entry.repeat) not in places:
                raise UsageError(
                    f"cell {entry.cell} of {self.folder / JOURNAL} is not one of the run's settings",
                    "restore run.json and the variants of the engines, or start a new run",
                )
            self._take(entry)


def place(skipped: Skipped) -> tuple[str, Load | None, int | None]:
    """Return label, load and repeat of a cell, or of an engine without these."""
    return skipped.label, skipped.load, skipped.repeat


def read_skipped(folder: Path) -> list[Skipped]:
    """Return cells and engines that were left out or failed. Raises UsageError where the file is broken."""
    return read_if_there(folder / SKIPPED, list[Skipped]) or []


def _reasons(faults: Sequence[Skipped]) -> list[str]:
    """Each reason once; where a server was lost in the middle of a cell, with how far that was."""
    lost = {(fault.label, fault.cause) for fault in faults if fault.cause}
    distinct = [fault for fault in faults if fault.cause or (fault.label, fault.reason) not in lost]
    return list(dict.fromkeys(f"{fault.label}: {fault.reason}" for fault in distinct))
