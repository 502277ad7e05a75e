"""What every run keeps in its folder while it lasts, and what must be as it was when it is resumed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import JsonValue, TypeAdapter

from harness.engines.base import Installation
from harness.errors import NothingMeasuredError, UsageError
from harness.files import write_json, write_whole
from harness.plain_text import visible
from harness.runs.folder import JOURNAL, RUN, SKIPPED, read_info, resume_command
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.load import Load
from harness.schema.results import Skipped
from harness.schema.run_info import LaunchRecord, OfflineRunInfo, OnlineRunInfo, Versions
from harness.schema.stored import read_stored
from harness.telemetry.machine import hardware, hardware_text
from harness.telemetry.revision import DIRTY, source_hash

Info = TypeVar("Info", OnlineRunInfo, OfflineRunInfo)
#: Label, load and repeat; the load of an offline run is None.
Place = tuple[str, Load | None, int | None]

_SKIPPED = TypeAdapter(list[Skipped])


@dataclass
class BaseRun(Generic[Info]):
    """A run and its folder. Every change is on disk before the method returns.

    `skipped` holds the engines that were not there when the run began (no repeat), which stay left out, and
    every cell that failed, in whichever part of the run; `done` the cells in the journal.
    """

    folder: Path
    info: Info
    skipped: list[Skipped] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    #: Held by whoever changes a file of the run: blocks may be measured side by side.
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False, kw_only=True)

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

    def skip(self, fault: Skipped) -> None:
        """A cell failed."""
        with self.lock:
            self.skipped = [old for old in self.skipped if place(old) != place(fault)]
            self.skipped.append(fault)
            self._keep_skipped()

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


def _how_to_bring_back(versions: Versions) -> str:
    """The code of a run."""
    if versions.git_rev is None:
        return f"install the rosebench {versions.rosebench} that it began with"
    commit = versions.git_rev.removesuffix(DIRTY)
    return f"check out revision {commit[:10]}" + (" with its changes" if commit != versions.git_rev else "")


def place(skipped: Skipped) -> Place:
    """Which cell it is, or which engine."""
    return skipped.label, skipped.load, skipped.repeat


def begun_before(folder: Path, kind: type[Info]) -> tuple[Info, list[Skipped]]:
    """What a run that was begun before measures, and what of it was left out or failed.

    Raises:
        UsageError: There is none, it is of another command, or a file of it is broken.
    """
    command = f"bench {'online' if kind is OnlineRunInfo else 'offline'}"
    info = read_info(folder, f"name the folder of a run of `{command}`")
    if not isinstance(info, kind):
        raise UsageError(f"{folder} is an {info.kind} run", f"finish it with `{resume_command(folder)}`")
    return info, read_skipped(folder)


def read_skipped(folder: Path) -> list[Skipped]:
    """What was left out of a run or failed. Raises UsageError where the file is broken."""
    kept = folder / SKIPPED
    return read_stored(kept, list[Skipped]) if kept.exists() else []


def _reasons(faults: Sequence[Skipped]) -> list[str]:
    """Each reason once; where a server was lost in the middle of a cell, with how far that was."""
    lost = {(fault.label, fault.cause) for fault in faults if fault.cause}
    said = [fault for fault in faults if fault.cause or (fault.label, fault.reason) not in lost]
    return list(dict.fromkeys(f"{fault.label}: {fault.reason}" for fault in said))
