"""A run as it is compared: from its raw tables, never from its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import UsageError
from harness.metrics.samples import Group, by_load
from harness.metrics.validity import invalid_reasons
from harness.runs.reader import read_raw
from harness.schema.client_calibration import client_calibration
from harness.schema.load import Load
from harness.schema.online_settings import OnlineSettings
from harness.schema.repeat_number import repeat_text
from harness.schema.run_info import OnlineRunInfo


@dataclass(frozen=True)
class StoredRun:
    """A run of `bench online`.

    `cells` holds the repeats of each engine at each load, `wrong` why an engine's answers are wrong.
    """

    path: Path
    info: OnlineRunInfo
    settings: OnlineSettings
    cells: dict[str, dict[Load, list[Group]]]
    wrong: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> StoredRun:
        """Read the run in the folder `path`.

        Raises:
            UsageError: It holds no finished online run of this version.
        """
        raw = read_raw(path, finished=True)
        cells: dict[str, dict[Load, list[Group]]] = {}
        for repeats in by_load([group for group in raw.groups if raw.info.counts(group.repeat)]):
            cells.setdefault(repeats[0].label, {})[repeats[0].load] = repeats
        return cls(path, raw.info, raw.info.settings, cells, raw.wrong)

    def label(self, name: str) -> str:
        """The label that `name` means: itself, or the one of `ENGINE` or `ENGINE@VARIANT`.

        Raises:
            UsageError: The run has no such engine.
        """
        if name in self.cells:
            return name
        found = [label for label in self.cells if self._reference(label) == name]
        if len(found) != 1:
            known = ", ".join(repr(label) for label in self.cells)
            raise UsageError(f"{self.path} has no engine {name!r}", f"it has {known}")
        return found[0]

    @property
    def not_measured(self) -> list[tuple[str, Load]]:
        """The engines and loads that the run was to measure and did not."""
        planned = dict.fromkeys(label for label, _ in self.info.order)
        return [
            (label, load)
            for label in planned
            for load in self.settings.loads
            if load not in self.cells.get(label, {})
        ]

    def invalid(self, label: str) -> list[str]:
        """Why cells of an engine are not to be believed."""
        calibration = client_calibration(self.info)
        answers = [f"{label}: its answers are wrong: {self.wrong[label]}"] if label in self.wrong else []
        return answers + [
            f"{label}, {load}, {repeat_text(group.repeat)}: {reason.text}"
            for load, repeats in self.cells[label].items()
            for group in repeats
            for reason in invalid_reasons(group, calibration)
        ]

    def _reference(self, label: str) -> str:
        """`ENGINE` or `ENGINE@VARIANT` of a label."""
        group = next(iter(self.cells[label].values()))[0]
        return group.engine if group.variant is None else f"{group.engine}@{group.variant}"
