"""A run as it is compared: from its raw tables, never from its summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import UsageError
from harness.metrics.estimates import COMPARED, COMPARED_OF_BATCH, Estimates, Key, estimates
from harness.metrics.notices import machine_notices
from harness.metrics.rates import Machines
from harness.metrics.samples import Group, by_load
from harness.metrics.validity import invalid_reasons
from harness.runs.folder import JOURNAL, resume_command
from harness.runs.journal import read_journal, watched
from harness.runs.reader import read_raw
from harness.runs.run_state import read_skipped
from harness.schema.base import repeat_text
from harness.schema.facts import DISTURBING, Fact
from harness.schema.limits import ERROR_RATE, GateTerm
from harness.schema.load import Load
from harness.schema.metrics import METRICS, rates
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Skipped
from harness.schema.run_info import RunInfo

#: What gates can limit in a run whose load is a batch.
GATED_OF_BATCH = tuple(name for name in rates("offline") if name in rates("gated"))


@dataclass(frozen=True)
class StoredRun:
    """A finished run, by its raw tables.

    Attributes:
        cells: The repeats of each engine, by label, at each load.
        skipped: Engines and cells without a result.
        wrong: Why an engine's answers are wrong, by label.
        machines: Load of the machine during each cell, by the cell's number.
    """

    path: Path
    info: RunInfo
    cells: Mapping[str, Mapping[Load, Sequence[Group]]]
    skipped: Sequence[Skipped] = ()
    wrong: Mapping[str, Fact] = field(default_factory=dict)
    machines: Machines = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> StoredRun:
        """Read the run in the folder `path`.

        Raises:
            UsageError: It holds no finished run of this version.
        """
        raw = read_raw(path, finished=True)
        cells: dict[str, dict[Load, list[Group]]] = {}
        for repeats in by_load([group for group in raw.groups if raw.info.counts(group.repeat)]):
            cells.setdefault(repeats[0].label, {})[repeats[0].load] = repeats
        if not cells:
            raise UsageError(f"nothing was measured in the run in {path}", "see its logs, and repeat it")
        machines = watched(read_journal(path / JOURNAL))
        return StoredRun(path, raw.info, cells, read_skipped(path), raw.wrong, machines)

    @property
    def settings(self) -> OnlineSettings:
        """Settings as resolved: nothing is auto."""
        return self.info.settings

    @property
    def is_batch(self) -> bool:
        """Tell whether its one load is a batch."""
        return self.settings.num_prompts is not None

    @property
    def loads(self) -> Sequence[Load]:
        """Loads that every engine was to be measured at."""
        return self.settings.loads

    @property
    def compared(self) -> Sequence[Key]:
        """Statistics that the run is compared by where nothing else is asked for."""
        if self.is_batch:
            return COMPARED_OF_BATCH
        of_level = [(name, name) for name in rates("gated") if METRICS[name].needs_slo and self.settings.slo]
        return [*COMPARED, *of_level]

    def estimates(self, label: str, load: Load) -> Estimates:
        """Estimate everything that is compared of one engine at one load.

        Prompts of a batch are named by all that they are drawn from, as two runs may have the same.
        """
        settings = self.settings
        every = estimates(self.cells[label][load], settings.slo, self.machines, len(settings.looks))
        if not self.is_batch:
            return every
        drawn = (
            f"{load} of {settings.input_len} tokens for {settings.output_len} below {settings.vocab_size}, "
            f"seed {settings.seed}"
        )
        return {
            key: replace(estimate, work=tuple(f"{drawn}, {prompts}" for prompts in estimate.work))
            for key, estimate in every.items()
            if key[0] in GATED_OF_BATCH
        }

    def failures(self, label: str, load: Load) -> list[tuple[int, int]]:
        """Count, for each repeat of one engine at one load, the requests that failed, and all of them."""
        every = [group.whole.requests["error"] for group in self.cells[label][load]]
        return [(int(errors.notna().sum()), len(errors)) for errors in every]

    def invalid(self, label: str) -> list[str]:
        """Return why cells of an engine are not to be believed."""
        calibration = self.info.client_calibration
        answers = [f"{label}: {self.wrong[label]}"] if label in self.wrong else []
        return answers + [
            f"{label}, {load}, {repeat_text(group.repeat)}: {reason}"
            for load, repeats in self.cells[label].items()
            for group in repeats
            for reason in invalid_reasons(group, calibration)
        ]

    def missing(self, label: str) -> list[str]:
        """Return the repeats of an engine that its run was to measure and did not, each with the reason.
        A search, a tuning or --until chooses its cells, and lacks none."""
        if self.info.is_adaptive or self.settings.until is not None:
            return []
        why = {(fault.load, fault.repeat): fault.reason for fault in self.skipped if fault.label == label}
        reasons = []
        for load in self.loads:
            measured = {row.repeat for row in self.cells[label].get(load, ())}
            for repeat in sorted(set(range(self.settings.repeats)) - measured):
                reason = why.get((load, repeat))
                text = "measured yet: the run ended before it" if reason is None else f"measured: {reason}"
                reasons.append(f"{label}, {load}, {repeat_text(repeat)}: not {text}")
        return reasons

    def disturbed(self, label: str, load: Load) -> list[Fact]:
        """Return what else used the machine while one engine was measured at one load."""
        return [
            fact
            for group in self.cells[label][load]
            for fact in machine_notices(group, self.machines)
            if fact.kind in DISTURBING
        ]

    def check(self, gate: GateTerm) -> None:
        """Raise UsageError if no run with these settings has what the gate limits."""
        if self.is_batch and gate.metric not in GATED_OF_BATCH:
            raise UsageError(
                f"the gate {gate.text!r} limits what a run of bench offline does not measure",
                f"it measures {', '.join(GATED_OF_BATCH)}",
            )
        if gate.metric != ERROR_RATE and METRICS[gate.metric].needs_slo and not self.settings.slo:
            label = METRICS[gate.metric].title
            raise UsageError(f"a gate on {label} needs a service level", "measure every run with --slo")

    @property
    def hint(self) -> str:
        """Hint on measuring what is missing."""
        return f"finish it: {resume_command(self.path)}; or repeat it without that engine"

    def label(self, name: str) -> str:
        """The label that `name` means: itself, or the one of `ENGINE` or `ENGINE@VARIANT`.

        Raises:
            UsageError: The run has no such engine, or several.
        """
        if name in self.cells:
            return name
        labels = [label for label in self.cells if self._reference(label) == name]
        if len(labels) != 1:
            names = ", ".join(repr(label) for label in labels or self.cells)
            count = "several engines" if labels else "no engine"
            raise UsageError(f"{self.path} has {count} {name!r}", f"it has {names}")
        return labels[0]

    @property
    def not_measured(self) -> list[tuple[str, Load]]:
        """The engines and loads that the run was to measure and did not."""
        planned = dict.fromkeys(label for label, _ in self.info.order)
        return [
            (label, load) for label in planned for load in self.loads if load not in self.cells.get(label, {})
        ]

    def _reference(self, label: str) -> str:
        """`ENGINE` or `ENGINE@VARIANT` of a label."""
        group = next(iter(self.cells[label].values()))[0]
        return group.engine if group.variant is None else f"{group.engine}@{group.variant}"
