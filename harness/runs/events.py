"""The events that a run reports while it runs; the command line shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.loadgen.load_plan import Progress
from harness.metrics.contrast import Contrast
from harness.runs.schedule import Cell
from harness.schema.facts import Fact
from harness.schema.profile import Level, ProfileRun, Tool
from harness.schema.results import OnlineSummary, Skipped
from harness.schema.run_info import TraceRecord, Unasked


class Event:
    """Something that happened in a run."""


@dataclass(frozen=True)
class Calibrating(Event):
    """The client itself is being measured, because it never was on this machine."""

    what: str


@dataclass(frozen=True)
class Prepared(Event):
    """All settings are checked, and nothing is measured yet."""


@dataclass(frozen=True)
class Started(Event):
    """The run has its folder, its load and its number of cells, of which `done` were measured before; `about`
    so many where what is measured decides."""

    folder: Path
    cells: int
    done: int = 0
    trace: TraceRecord | None = None
    about: bool = False


@dataclass(frozen=True)
class EngineSkipped(Event):
    """An engine, or the rest of its cells, will not be measured."""

    skipped: Skipped


@dataclass(frozen=True)
class EngineNotAsked(Event):
    """A check after an engine's cells failed. They are measured."""

    unasked: Unasked


@dataclass(frozen=True)
class EngineStarting(Event):
    """An engine's server is being started, its log going to `log`."""

    label: str
    log: Path


@dataclass(frozen=True)
class EngineWarming(Event):
    """The server is ready after `ready_s` (None: it was running) and gets `requests` to warm up."""

    label: str
    ready_s: float | None
    requests: int


@dataclass(frozen=True)
class WarmupProgress(Event):
    """Progress of a warm-up: of its `requests`, those that are `done`."""

    label: str
    requests: int
    done: int


@dataclass(frozen=True)
class CellProgress(Event):
    """Counts of the cell that is being measured, of `requests`."""

    cell: Cell
    requests: int
    progress: Progress


@dataclass(frozen=True)
class TooFewClients(Event):
    """A cell is measured again, by `more` client processes: one of `clients` had more than its share."""

    cell: Cell
    clients: int
    more: int


@dataclass(frozen=True)
class LateClient(Event):
    """A cell is measured again, as its client was late."""

    cell: Cell
    late: Fact


@dataclass(frozen=True)
class CellDone(Event):
    """A cell is measured and saved."""

    cell: Cell
    summary: OnlineSummary


@dataclass(frozen=True)
class ConfigurationDropped(Event):
    """A configuration of `bench tune` is not measured again, after so many repeats."""

    label: str
    repeats: int


@dataclass(frozen=True)
class RepeatsNeeded(Event):
    """The first repeats are measured, whose spread says how many find a difference in each comparison."""

    contrasts: Sequence[Contrast]


@dataclass(frozen=True)
class CellsExpected(Event):
    """About so many cells there will be, by what is known now."""

    cells: int


@dataclass(frozen=True)
class CaptureSkipped(Event):
    """An engine is not profiled with that tool."""

    label: str
    tool: Tool
    reason: str


@dataclass(frozen=True)
class CaptureStarting(Event):
    """A profiler's capture begins, the engine's output going to `log`."""

    label: str
    tool: Tool
    level: Level
    log: Path


@dataclass(frozen=True)
class CaptureWaiting(Event):
    """An engine has no time for its profiler; it is asked again after `seconds`."""

    label: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class CaptureDone(Event):
    """A capture has ended, well or with `run.error`."""

    run: ProfileRun


@dataclass(frozen=True)
class Reporting(Event):
    """All cells are saved; tables, figures and report are being made."""


Notify = Callable[[Event], None]
