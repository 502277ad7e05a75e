"""The events that a run reports while it runs; the command line shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from harness.loadgen.load_plan import Progress
from harness.metrics.contrast import Contrast
from harness.runs.schedule import Cell
from harness.schema.facts import Fact
from harness.schema.profile import Level, ProfileRun, Tool
from harness.schema.results import OnlineSummary, Skipped
from harness.schema.run_info import TraceRecord, Unasked


class Event(msgspec.Struct, frozen=True):
    """Something that happened in a run."""


class Calibrating(Event, frozen=True):
    """The client itself is being measured, because it never was on this machine."""

    what: str


class Prepared(Event, frozen=True):
    """All settings are checked, and nothing is measured yet."""


class Started(Event, frozen=True):
    """The run has its folder, its load and its number of cells, of which `done` were measured before; `about`
    so many where what is measured decides."""

    folder: Path
    cells: int
    done: int = 0
    trace: TraceRecord | None = None
    about: bool = False


class EngineSkipped(Event, frozen=True):
    """An engine, or the rest of its cells, will not be measured."""

    skipped: Skipped


class EngineNotAsked(Event, frozen=True):
    """A check after an engine's cells failed. They are measured."""

    unasked: Unasked


class EngineStarting(Event, frozen=True):
    """An engine's server is being started, its log going to `log`."""

    label: str
    log: Path


class EngineWarming(Event, frozen=True):
    """The server is ready after `ready_s` (None: it was running) and gets `requests` to warm up."""

    label: str
    ready_s: float | None
    requests: int


class WarmupProgress(Event, frozen=True):
    """Progress of a warm-up: of its `requests`, those that are `done`."""

    label: str
    requests: int
    done: int


class CellProgress(Event, frozen=True):
    """Counts of the cell that is being measured, of `requests`."""

    cell: Cell
    requests: int
    progress: Progress


class TooFewClients(Event, frozen=True):
    """A cell is measured again, by `more` client processes: one of `clients` had more than its share."""

    cell: Cell
    clients: int
    more: int


class LateClient(Event, frozen=True):
    """A cell is measured again, as its client was late."""

    cell: Cell
    late: Fact


class CellDone(Event, frozen=True):
    """A cell is measured and saved."""

    cell: Cell
    summary: OnlineSummary


class ConfigurationDropped(Event, frozen=True):
    """A configuration of `bench tune` is not measured again, after so many repeats."""

    label: str
    repeats: int


class RepeatsNeeded(Event, frozen=True):
    """The first repeats are measured, whose spread says how many find a difference in each comparison."""

    contrasts: Sequence[Contrast]


class CellsExpected(Event, frozen=True):
    """About so many cells there will be, by what is known now."""

    cells: int


class CaptureSkipped(Event, frozen=True):
    """An engine is not profiled with that tool."""

    label: str
    tool: Tool
    reason: str


class CaptureStarting(Event, frozen=True):
    """A profiler's capture begins, the engine's output going to `log`."""

    label: str
    tool: Tool
    level: Level
    log: Path


class CaptureWaiting(Event, frozen=True):
    """An engine has no time for its profiler; it is asked again after `seconds`."""

    label: str
    reason: str
    seconds: float


class CaptureDone(Event, frozen=True):
    """A capture has ended, well or with `run.error`."""

    run: ProfileRun


class Reporting(Event, frozen=True):
    """All cells are saved; tables, figures and report are being made."""


Notify = Callable[[Event], None]
