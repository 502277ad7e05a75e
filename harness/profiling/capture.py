"""Puts the sample on a server and captures once the load is steady.

The load runs in processes of its own, as in a benchmark. Beside it one thread starts the capture when
every place in the load has been taken a second time, and stops it; the rest of the load is then cut off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from harness.engines.base import Encoder, Server
from harness.engines.local import EngineProfiler
from harness.engines.server_pages import post
from harness.errors import BenchError, EngineError
from harness.loadgen.load_plan import LoadPlan, Progress, Target, WireRequest
from harness.loadgen.run_load import run_load
from harness.profiling.artifacts import files
from harness.workload import PlannedRequest

WRITING_S, POLL_S = 120.0, 0.1


class Window(Protocol):
    """Begins and ends a recording of what is running."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class RouteWindow:
    """The engine's own profiler, through its routes."""

    def __init__(self, target: Target, profiler: EngineProfiler) -> None:
        self._target, self._profiler = target, profiler

    def start(self) -> None:
        if self._profiler.start is not None:
            post(self._target, self._profiler.start)

    def stop(self) -> None:
        if self._profiler.stop is not None:
            post(self._target, self._profiler.stop)


def capture(
    server: Server,
    requests: Sequence[PlannedRequest],
    encode: Encoder,
    in_flight: int,
    windows: Sequence[Window],
    done: Callable[[], bool],
    capture_s: float,
    cpus: Sequence[int] | None,
) -> None:
    """Hold `in_flight` requests on `server` and record through all `windows`, the first being outermost.

    Args:
        done: whether the recording is over before its time.
        capture_s: its longest time.

    Raises:
        EngineError: the load was over before the recording was, or a window could not be opened or closed.
    """
    wire = [WireRequest(r.index, None, encode(r)) for r in requests]
    recorder = _Recorder(windows, done, capture_s)
    try:
        run_load(
            LoadPlan(server.target, wire, in_flight),
            cpus=cpus,
            progress=lambda progress: _follow(progress, in_flight, recorder),
        )
    except _Captured:
        pass
    finally:
        over = recorder.end()
    server.check()
    if recorder.error is not None:
        raise recorder.error
    if not over:
        raise EngineError(
            f"the load of {len(wire)} requests was over before the capture was",
            "profile a run with longer answers or more requests in flight, or lower --steps",
        )


class _Captured(Exception):  # noqa: N818 - an end, not an error
    """The rest of the load is not needed."""


def _follow(progress: Progress, in_flight: int, recorder: _Recorder) -> None:
    if progress.failed > in_flight:
        raise EngineError(f"{progress.failed} requests of the sample failed", "see the engine's log")
    if recorder.over.is_set():
        raise _Captured
    if progress.completed - progress.failed >= in_flight:
        recorder.begin()


class _Recorder:
    """Records while the load runs. `over` is set when it has ended, well or with `error`."""

    def __init__(self, windows: Sequence[Window], done: Callable[[], bool], capture_s: float) -> None:
        self._windows, self._done, self._capture_s = windows, done, capture_s
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._give_up = threading.Event()
        self._whole = False
        self.over = threading.Event()
        self.error: BenchError | None = None

    def begin(self) -> None:
        if not self._thread.is_alive() and not self.over.is_set():
            self._thread.start()

    def end(self) -> bool:
        """Wait for the recording's end, which comes at once when the load has gone. Whether it is whole."""
        self._give_up.set()
        if self._thread.ident is not None:
            self._thread.join()
        return self._whole

    def _record(self) -> None:
        try:
            for window in self._windows:
                window.start()
            deadline = time.monotonic() + self._capture_s
            while not self._done() and time.monotonic() < deadline and not self._give_up.wait(POLL_S):
                pass
            self._whole = self._done() or not self._give_up.is_set()
            for window in reversed(self._windows):
                window.stop()
        except BenchError as error:
            self.error = error
        finally:
            self.over.set()


def settle(folder: Path, settled_s: float) -> None:
    """Wait until there is something in `folder` that has not changed for `settled_s`."""
    deadline = time.monotonic() + WRITING_S
    before, since = _state(folder), time.monotonic()
    while time.monotonic() - since < settled_s or not before:
        if time.monotonic() > deadline:
            return
        time.sleep(POLL_S)
        if (now := _state(folder)) != before:
            before, since = now, time.monotonic()


def _state(folder: Path) -> list[tuple[str, int]]:
    return [(str(path), path.stat().st_size) for path in files(folder)]
