"""A run as it is compared: from its raw tables where it has any, never from its summaries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import UsageError
from harness.metrics.batches import GATED, batch_estimates
from harness.metrics.estimates import COMPARED, Estimates, Key, estimates
from harness.metrics.notices import Machines, machine_notices
from harness.metrics.primary import RATE
from harness.metrics.samples import Group, by_load
from harness.metrics.validity import invalid_reasons
from harness.runs.base_run import read_skipped
from harness.runs.folder import JOURNAL, read_info, resume_command
from harness.runs.journal import read_journal, watched
from harness.runs.reader import read_offline, read_raw
from harness.schema.limits import GateTerm
from harness.schema.load import AnyLoad, Batch
from harness.schema.online_settings import OnlineSettings
from harness.schema.repeat_number import repeat_text
from harness.schema.results import OfflineResult, Skipped
from harness.schema.run_info import OfflineRunInfo, OnlineRunInfo
from harness.schema.settings import OfflineSettings
from harness.schema.stored import client_calibration


@dataclass(frozen=True)
class StoredRun(ABC):
    """A finished run. `cells` holds the repeats of each engine, by label, at each load; `skipped` what has no
    result."""

    path: Path
    info: OnlineRunInfo | OfflineRunInfo
    cells: Mapping[str, Mapping[AnyLoad, Sequence[Group | OfflineResult]]]
    skipped: Sequence[Skipped] = field(default=(), kw_only=True)

    @staticmethod
    def read(path: Path) -> StoredOnline | StoredOffline:
        """Read the run in the folder `path`.

        Raises:
            UsageError: It holds no finished run of this version.
        """
        kind = read_info(path, "name the folder of a run").kind
        return StoredOnline.read(path) if kind == "online" else StoredOffline.read(path)

    @property
    @abstractmethod
    def settings(self) -> OnlineSettings | OfflineSettings:
        """As resolved: nothing is auto."""

    @property
    @abstractmethod
    def loads(self) -> Sequence[AnyLoad]:
        """Those that every engine was to be measured at."""

    @property
    @abstractmethod
    def compared(self) -> Sequence[Key]:
        """The statistics that it is compared by where nothing else is asked for."""

    @abstractmethod
    def estimates(self, label: str, load: AnyLoad) -> Estimates:
        """Everything that is known of one engine at one load."""

    @abstractmethod
    def failures(self, label: str, load: AnyLoad) -> list[tuple[int, int]]:
        """Of each repeat of one engine at one load, the requests that failed, and all of them."""

    @abstractmethod
    def invalid(self, label: str) -> list[str]:
        """Why cells of an engine are not to be believed."""

    def missing(self, label: str) -> list[str]:
        """The repeats of an engine that its run was to measure and has no result of, each with the reason. A
        search or tuning chooses its cells, and lacks none."""
        if isinstance(self.info, OnlineRunInfo) and self.info.is_adaptive:
            return []
        why = {(fault.load, fault.repeat): fault.reason for fault in self.skipped if fault.label == label}
        found = []
        for load in self.loads:
            measured = {row.repeat for row in self.cells[label].get(load, ())}
            for repeat in sorted(set(range(self.settings.repeats)) - measured):
                reason = why.get((None if isinstance(load, Batch) else load, repeat))
                said = "measured yet: the run ended before it" if reason is None else f"measured: {reason}"
                found.append(f"{label}, {load}, {repeat_text(repeat)}: not {said}")
        return found

    def disturbed(self, label: str, load: AnyLoad) -> list[str]:
        """What else used the machine while one engine was measured at one load, where it was watched."""
        return []

    @abstractmethod
    def check(self, gate: GateTerm) -> None:
        """Raises UsageError: no run with these settings has what the gate limits."""

    @property
    @abstractmethod
    def hint(self) -> str:
        """How to measure what is missing."""

    def label(self, name: str) -> str:
        """The label that `name` means: itself, or the one of `ENGINE` or `ENGINE@VARIANT`.

        Raises:
            UsageError: The run has no such engine, or several.
        """
        if name in self.cells:
            return name
        found = [label for label in self.cells if self._reference(label) == name]
        if len(found) != 1:
            known = ", ".join(repr(label) for label in found or self.cells)
            count = "several engines" if found else "no engine"
            raise UsageError(f"{self.path} has {count} {name!r}", f"it has {known}")
        return found[0]

    @property
    def not_measured(self) -> list[tuple[str, AnyLoad]]:
        """The engines and loads that the run was to measure and did not."""
        planned = dict.fromkeys(label for label, _ in self.info.order)
        return [
            (label, load) for label in planned for load in self.loads if load not in self.cells.get(label, {})
        ]

    def _reference(self, label: str) -> str:
        """`ENGINE` or `ENGINE@VARIANT` of a label."""
        group = next(iter(self.cells[label].values()))[0]
        return group.engine if group.variant is None else f"{group.engine}@{group.variant}"


@dataclass(frozen=True)
class StoredOnline(StoredRun):
    """A run of `bench online`. `wrong` is why an engine's answers are wrong, by label; `machines` is what the
    machine did meanwhile, by cell."""

    info: OnlineRunInfo
    cells: Mapping[str, Mapping[AnyLoad, Sequence[Group]]]
    wrong: Mapping[str, str] = field(default_factory=dict)
    machines: Machines = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> StoredOnline:
        raw = read_raw(path, finished=True)
        cells: dict[str, dict[AnyLoad, list[Group]]] = {}
        for repeats in by_load([group for group in raw.groups if raw.info.counts(group.repeat)]):
            cells.setdefault(repeats[0].label, {})[repeats[0].load] = repeats
        machines = watched(read_journal(path / JOURNAL))
        return StoredOnline(path, raw.info, cells, raw.wrong, machines, skipped=read_skipped(path))

    @property
    def settings(self) -> OnlineSettings:
        return self.info.settings

    @property
    def loads(self) -> Sequence[AnyLoad]:
        return self.settings.loads

    @property
    def compared(self) -> Sequence[Key]:
        goodput: Key = ("goodput_req_per_s", "goodput_req_per_s")
        return [*COMPARED, *([goodput] if self.settings.slo else [])]

    def estimates(self, label: str, load: AnyLoad) -> Estimates:
        return estimates(self.cells[label][load], self.settings.slo)

    def failures(self, label: str, load: AnyLoad) -> list[tuple[int, int]]:
        every = [(group.whole or group).requests["error"] for group in self.cells[label][load]]
        return [(int(errors.notna().sum()), len(errors)) for errors in every]

    def invalid(self, label: str) -> list[str]:
        calibration = client_calibration(self.info)
        answers = [f"{label}: its answers are wrong: {self.wrong[label]}"] if label in self.wrong else []
        return answers + [
            f"{label}, {load}, {repeat_text(group.repeat)}: {reason.text}"
            for load, repeats in self.cells[label].items()
            for group in repeats
            for reason in invalid_reasons(group, calibration)
        ]

    def disturbed(self, label: str, load: AnyLoad) -> list[str]:
        return [
            f"{repeat_text(group.repeat)}: {notice.text}"
            for group in self.cells[label][load]
            for notice in machine_notices(group, self.machines)
            if notice.kind == "disturbed"
        ]

    def check(self, gate: GateTerm) -> None:
        if gate.metric == "goodput_req_per_s" and not self.settings.slo:
            raise UsageError("a gate on goodput needs a service level", "measure every run with --slo")

    @property
    def hint(self) -> str:
        return f"finish it: {resume_command(self.path)}; or repeat it without that engine"


@dataclass(frozen=True)
class StoredOffline(StoredRun):
    """A run of `bench offline`, whose one load is its batch."""

    info: OfflineRunInfo
    cells: Mapping[str, Mapping[AnyLoad, Sequence[OfflineResult]]]

    @staticmethod
    def read(path: Path) -> StoredOffline:
        results = read_offline(path).results
        if not results.results:
            raise UsageError(f"nothing was measured in the run in {path}", "see its logs, and repeat it")
        cells: dict[str, dict[AnyLoad, list[OfflineResult]]] = {}
        for row in results.results:
            cells.setdefault(row.label, {}).setdefault(_batch(results.meta), []).append(row)
        return StoredOffline(path, results.meta, cells, skipped=results.skipped)

    @property
    def settings(self) -> OfflineSettings:
        return self.info.settings

    @property
    def loads(self) -> Sequence[AnyLoad]:
        return [_batch(self.info)]

    @property
    def compared(self) -> Sequence[Key]:
        return [(RATE, RATE)]

    def estimates(self, label: str, load: AnyLoad) -> Estimates:
        given = self.settings
        drawn = (
            f"{load} of {given.input_len} tokens for {given.output_len} below {given.vocab_size}, "
            f"seed {given.seed}"
        )
        return batch_estimates(self.cells[label][load], drawn)

    def disturbed(self, label: str, load: AnyLoad) -> list[str]:
        return [
            f"{repeat_text(row.repeat)}: {notice.text}"
            for row in self.cells[label][load]
            for notice in row.notices
            if notice.kind == "disturbed"
        ]

    def failures(self, label: str, load: AnyLoad) -> list[tuple[int, int]]:
        """No batch with a failed prompt has a result."""
        return [(0, row.num_prompts * row.batches) for row in self.cells[label][load]]

    def invalid(self, label: str) -> list[str]:
        """None: a batch with a failed prompt has no result."""
        return []

    def check(self, gate: GateTerm) -> None:
        if gate.metric not in GATED:
            raise UsageError(
                f"the gate {gate.text!r} limits what a run of bench offline does not measure",
                f"it measures {', '.join(GATED)}",
            )

    @property
    def hint(self) -> str:
        return f"finish it: {resume_command(self.path)}; or repeat it without that engine"


def _batch(info: OfflineRunInfo) -> Batch:
    """The one load of an offline run."""
    return Batch(prompts=info.settings.num_prompts)
