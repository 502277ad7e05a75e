"""A run on disk: what it was asked, what of it is measured, and what was left out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue, TypeAdapter

from harness.engines.base import EngineVariant, Installation
from harness.engines.selection import make_engine_variants
from harness.errors import NothingMeasuredError, UsageError
from harness.files import write_json, write_whole
from harness.plain_text import visible
from harness.runs.folder import JOURNAL, REQUESTS_TABLE, RUN, SKIPPED, read_info
from harness.runs.journal import JournalEntry, append_journal, read_journal
from harness.runs.plans import Done
from harness.runs.schedule import Cell, grid_blocks, measured_cells
from harness.schema.fairness import EngineFact
from harness.schema.files import read_stored
from harness.schema.load import Load
from harness.schema.machines import Calibration
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Skipped
from harness.schema.run_info import Check, LaunchRecord, RunInfo, Unasked, Versions
from harness.schema.setting_types import RUNNING_SERVER
from harness.telemetry.machine import hardware, hardware_text
from harness.telemetry.revision import DIRTY, source_hash

#: How long before the end of a run a node may be lost as it ends, too.
SAME_MOMENT_S = 5.0


#: Label, load and repeat.
Place = tuple[str, Load | None, int | None]

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
    lasted: dict[tuple[str, Load], int | None] = field(default_factory=dict)
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
        info.order = [(cell.engine_variant.label, cell.repeat) for cell in run.cells()]
        info.order = list(dict.fromkeys(info.order))
        run._keep_skipped()
        write_json(folder / RUN, info)  # last: a folder with it holds a whole run
        return run

    @classmethod
    def open(cls, folder: Path) -> Self:
        """A run that was begun before.

        Raises:
            UsageError: There is none, nothing was to be measured, or its files do not belong together.
        """
        info = read_info(folder, "name the folder of a run")
        if info.kind == "offline" and not info.order:
            raise UsageError(f"nothing was to be measured in the run in {folder}", "start a new run")
        run = cls(folder, info, read_skipped(folder))
        run._read_journal()
        return run

    @property
    def absent(self) -> set[str]:
        """The labels of the engines that were not there when the run began."""
        return {fault.label for fault in self.skipped if fault.is_whole_engine}

    def launched(self, record: LaunchRecord) -> None:
        """Keep what an engine was started with the first time, what code and how soon it was ready each time.

        Raises:
            UsageError: It is a running server that serves another model now.
        """
        with self.lock:
            first = next((known for known in self.info.launches if known.label == record.label), None)
            if first is not None and first.engine == RUNNING_SERVER:
                served, now = first.settings.get("model"), record.settings.get("model")
                if served != now:
                    raise UsageError(
                        f"{record.label} served {served} in the run and serves {now} now",
                        "serve that model again, or start a new run",
                    )
            if first is None:
                self.info.launches.append(record)
            elif record.ready_s is not None:
                first.later_ready_s.append(record.ready_s)
                first.codes += [code for code in record.codes if code not in first.codes]
            else:
                return
            write_json(self.folder / RUN, self.info)

    def check_unchanged(
        self,
        missing: Iterable[Skipped],
        found: Iterable[Installation],
        environment: Mapping[str, JsonValue],
    ) -> None:
        """Raises UsageError when what is left would be measured with other engines, by other code or on other
        hardware than the rest.

        Args:
            missing: The engines that are not here now.
            found: Those that are.
            environment: The engines' machine.
        """
        hint = "bring it back, or start a new run"
        for gone in missing:
            if gone.label not in self.absent:
                raise UsageError(
                    f"{gone.label} is part of the run and not here any more: {gone.reason}", hint
                )
        installed: dict[str, str] = {here.engine: here.version for here in found}
        for launch in self.info.launches:
            version = installed.get(launch.engine)
            if version != launch.version:
                raise UsageError(f"{launch.label} was {launch.version} in the run and is {version} now", hint)
        began, source = self.info.versions, source_hash()
        if began.source not in (None, source):
            raise UsageError(
                f"the run began with other code of bench and roseinfer: {began.source}, and this is {source}",
                f"{_how_to_bring_back(began)}, or start a new run",
            )
        device, machine = self.info.settings.device, self.info.environment
        if machine and hardware(device, machine) != hardware(device, environment):
            raise UsageError(
                f"the run began on {hardware_text(device, machine)}, "
                f"and this is {hardware_text(device, environment)}",
                "resume it where it began, or start a new run",
            )

    def nothing_measured(self) -> NothingMeasuredError:
        """Why no cell was measured, each reason once."""
        faults = [fault for fault in self.skipped if not fault.is_whole_engine]
        hints = dict.fromkeys(fault.hint for fault in faults if fault.hint)
        return NothingMeasuredError(
            f"nothing could be measured: {'; '.join(_reasons(faults))}",
            "; ".join(hints),
            new_run=any(fault.new_run for fault in faults),
        )

    def _foreign(self, cell: int) -> UsageError:
        """The error where the journal has a cell that the settings do not give."""
        return UsageError(
            f"cell {cell} of {self.folder / JOURNAL} is not one of the run's settings",
            "restore run.json and the variants of the engines, or start a new run",
        )

    def _no_journal(self) -> UsageError:
        """The error where there are results, and no cell in the journal: all would be measured again."""
        return UsageError(
            f"{self.folder} has results and no {JOURNAL}, so it is not known what is left to measure",
            "restore the file, or start a new run; earlier versions of bench wrote no such file",
        )

    def _keep_skipped(self) -> None:
        dumped = _SKIPPED.dump_json(self.skipped, indent=2).decode()
        write_whole(self.folder / SKIPPED, visible(dumped).encode() + b"\n")

    @property
    def settings(self) -> OnlineSettings:
        """As resolved when the run began."""
        return self.info.settings

    @property
    def settings_now(self) -> OnlineSettings:
        """The settings with the nonce of what is measured now."""
        nonce = {} if self.nonce is None else {"prompt_nonce": self.nonce}
        return self.settings.model_copy(update=nonce)

    @property
    def calibration(self) -> Calibration | None:
        """What the run's client processes sustain; None where that was not measured."""
        return self.info.client_calibration

    @property
    def engine_variants(self) -> list[EngineVariant]:
        """The engines that were there when the run began."""
        return [
            engine_variant
            for engine_variant in make_engine_variants(self.settings)
            if engine_variant.label not in self.absent
        ]

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

    def knows_idle_cores(self, label: str) -> bool:
        """Whether an engine's cores that are busy with waiting are known."""
        return any("idle_cores" in known.facts for known in self.info.launches if known.label == label)

    def keep_idle_cores(self, label: str, cores: EngineFact) -> None:
        """Keep how many cores of a launched engine are busy with waiting."""
        with self.lock:
            for known in self.info.launches:
                if known.label == label:
                    known.facts["idle_cores"] = cores
            write_json(self.folder / RUN, self.info)

    def to_ask(self, label: str, repeat: int, what: list[Check], reason: str = "", hint: str = "") -> Unasked:
        """Keep what an engine is to be asked after its cells of a repeat; with a reason, what it was not."""
        asked = Unasked(label=label, repeat=repeat, what=what, reason=reason, hint=hint)
        with self.lock:
            others = [old for old in self.info.unasked if (old.label, old.repeat) != (label, repeat)]
            self._keep_unasked([*others, asked] if what or reason else others)
        return asked

    def left_to_ask(self, label: str, repeat: int) -> list[Check]:
        """What an engine was not asked yet after its cells of a repeat."""
        left = (old.what for old in self.info.unasked if (old.label, old.repeat) == (label, repeat))
        return list(next(left, ()))

    def asked(self, label: str, repeat: int, what: Check) -> None:
        """An engine was asked that. Its accuracy counts for the whole run, as do all servers of a search."""
        kept, whole = [], what == "accuracy" or self.info.search is not None
        with self.lock:
            for old in self.info.unasked:
                if old.label == label and (whole or old.repeat == repeat) and what in old.what:
                    old = old.model_copy(update={"what": [other for other in old.what if other != what]})
                    if not old.what:
                        continue
                kept.append(old)
            self._keep_unasked(kept)

    def interrupted(self, *, is_so: bool) -> None:
        """Keep whether the user ended it early."""
        if self.info.interrupted != is_so:
            self.info.interrupted = is_so
            write_json(self.folder / RUN, self.info)

    def finish(self, entry: JournalEntry) -> None:
        """A cell is measured, and its records are written."""
        with self.lock:
            append_journal(self.folder / JOURNAL, entry)
            self._take(entry)

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

    def end_early(self) -> None:
        """The run ends before its last cell. Nodes that were lost at the same moment ended for the same
        reason, so their cells did not fail: the run did not come to them."""
        with self.lock:
            self.is_ending = True
            since = monotonic() - SAME_MOMENT_S
            lost = [fault for when, fault in self.lost if when > since]
            self.lost.clear()
            if lost:
                self.skipped = [fault for fault in self.skipped if fault not in lost]
                self._keep_skipped()

    def left_out(self) -> list[Skipped]:
        """What is missing from the results. A cell that failed at first and was measured later is not
        missing."""
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
        entries = read_journal(self.folder / JOURNAL)
        if self.info.is_adaptive:
            cells = {cell.index: cell for cell in measured_cells(self.engine_variants, entries)}
        else:
            cells = {cell.index: cell for cell in self.cells()}
        if not entries and _has_rows(self.folder / REQUESTS_TABLE):
            raise self._no_journal()
        for entry in entries:
            cell = cells.get(entry.cell)
            measured = (entry.label, entry.load, entry.repeat)
            if cell is None or measured != (cell.engine_variant.label, cell.load, cell.repeat):
                raise self._foreign(entry.cell)
            self._take(entry)


def _how_to_bring_back(versions: Versions) -> str:
    """The code of a run."""
    if versions.git_rev is None:
        return f"install the rosebench {versions.rosebench} that it began with"
    commit = versions.git_rev.removesuffix(DIRTY)
    return f"check out revision {commit[:10]}" + (" with its changes" if commit != versions.git_rev else "")


def place(skipped: Skipped) -> Place:
    """Which cell it is, or which engine."""
    return skipped.label, skipped.load, skipped.repeat


def read_skipped(folder: Path) -> list[Skipped]:
    """What was left out of a run or failed. Raises UsageError where the file is broken."""
    kept = folder / SKIPPED
    return read_stored(kept, list[Skipped]) if kept.exists() else []


def _reasons(faults: Sequence[Skipped]) -> list[str]:
    """Each reason once; where a server was lost in the middle of a cell, with how far that was."""
    lost = {(fault.label, fault.cause) for fault in faults if fault.cause}
    said = [fault for fault in faults if fault.cause or (fault.label, fault.reason) not in lost]
    return list(dict.fromkeys(f"{fault.label}: {fault.reason}" for fault in said))


def _has_rows(table: Path) -> bool:
    """Whether a table is there and not known to be empty."""
    try:
        return int(pq.read_metadata(table).num_rows) > 0
    except (OSError, pa.ArrowInvalid):
        return table.exists()
