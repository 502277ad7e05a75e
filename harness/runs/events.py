"""The events that a run reports while it runs; the command line shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.loadgen.load_plan import Progress
from harness.runs.schedule import Cell
from harness.schema.profile import Level, ProfileRun, Tool
from harness.schema.results import OnlineSummary, Skipped
from harness.schema.run_info import TraceRecord, Unasked


@dataclass(frozen=True)
class Calibrating:
    """The client itself is being measured, because it never was on this machine."""

    what: str


@dataclass(frozen=True)
class Started:
    """The run has its folder, its load and its number of cells, of which `done` were measured before; `about`
    so many where what is measured decides."""

    folder: Path
    cells: int
    done: int = 0
    trace: TraceRecord | None = None
    about: bool = False


@dataclass(frozen=True)
class EngineSkipped:
    """An engine, or the rest of its cells, will not be measured."""

    skipped: Skipped


@dataclass(frozen=True)
class EngineNotAsked:
    """What follows an engine's cells failed. They are measured."""

    unasked: Unasked


@dataclass(frozen=True)
class EngineStarting:
    """An engine's server is being started, its log going to `log`."""

    label: str
    log: Path


@dataclass(frozen=True)
class EngineWarming:
    """The server is ready after `ready_s` (None: it was running) and gets `requests` to warm up."""

    label: str
    ready_s: float | None
    requests: int


@dataclass(frozen=True)
class WarmupProgress:
    """So many of the `requests` of a warm-up are `done`."""

    label: str
    requests: int
    done: int


@dataclass(frozen=True)
class CellProgress:
    """Counts of the cell that is being measured, of `requests`."""

    cell: Cell
    requests: int
    progress: Progress


@dataclass(frozen=True)
class TooFewClients:
    """A cell is measured again, by `more` client processes: one of `clients` had more than its share."""

    cell: Cell
    clients: int
    more: int


@dataclass(frozen=True)
class CellDone:
    """A cell is measured and saved."""

    cell: Cell
    summary: OnlineSummary


@dataclass(frozen=True)
class ConfigurationDropped:
    """A configuration of `bench tune` is not measured again, after so many repeats."""

    label: str
    repeats: int


@dataclass(frozen=True)
class CellsExpected:
    """About so many cells there will be, by what is known now."""

    cells: int


@dataclass(frozen=True)
class CaptureSkipped:
    """An engine is not profiled with that tool."""

    label: str
    tool: Tool
    reason: str


@dataclass(frozen=True)
class CaptureStarting:
    """A profiler's capture begins, the engine's output going to `log`."""

    label: str
    tool: Tool
    level: Level
    log: Path


@dataclass(frozen=True)
class CaptureDone:
    """A capture has ended, well or with `run.error`."""

    run: ProfileRun


@dataclass(frozen=True)
class Reporting:
    """All cells are saved; tables, figures and report are being made."""


Event = (
    Calibrating
    | Started
    | EngineSkipped
    | EngineNotAsked
    | EngineStarting
    | EngineWarming
    | WarmupProgress
    | CellProgress
    | TooFewClients
    | CellDone
    | ConfigurationDropped
    | CellsExpected
    | CaptureSkipped
    | CaptureStarting
    | CaptureDone
    | Reporting
)
Notify = Callable[[Event], None]
