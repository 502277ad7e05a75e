"""Profiles some steps of the engine process with torch.profiler, and adds the front ends' named ranges."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from roseinfer.engine.profile_trace import add_ranges
from roseinfer.ipc.messages import Record, Recorded
from roseinfer.request.params import RequestError

log = logging.getLogger(__name__)


def nvtx_ranges() -> AbstractContextManager[object]:
    """Turns every record_function and operator into an NVTX range for Nsight Systems, if ROSEINFER_NVTX is
    1."""
    is_on = os.environ.get("ROSEINFER_NVTX") == "1" and torch.cuda.is_available()
    if not is_on:
        return nullcontext()
    ranges: AbstractContextManager[object] = torch.autograd.profiler.emit_nvtx()  # type: ignore[no-untyped-call]
    return ranges


class StepProfiler:
    """Off until started. A profile ends after its number of steps, or when it is stopped. It is written when
    each of the `front_ends`, which `send` reaches, has sent its ranges. `ranks` profiles the same steps in
    the other ranks: see Engine.profile_ranks.
    """

    def __init__(
        self, front_ends: int, send: Callable[[Record], None], ranks: Callable[..., str | None]
    ) -> None:
        self._front_ends, self._send, self._ranks = front_ends, send, ranks
        self._recorded: list[Recorded] = []
        self._profile: profile | None = None
        self.writing = False
        self.failure: str | None = None  # why the last profile was not written
        self._steps_left, self._ends = 0, 0.0
        self._path = self._trace = self._partial = Path()

    def start(self, folder: str, steps: int, with_stack: bool, seconds: float) -> None:
        """Profile the next `steps` steps into a trace in `folder`, for `seconds` at most.

        Raises:
            RequestError: a profile is running already, or no file can be created in the folder.
        """
        if self._profile is not None:
            raise RequestError("a profile is already running; POST /stop_profile ends it")
        path = Path(folder) / f"roseinfer-{os.getpid()}.trace.json.gz"
        self._path, self._partial = path, path.with_name(f".{path.name}")
        self._trace = path.with_name(f".roseinfer-{os.getpid()}.own.json")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._trace.touch()
            self._trace.unlink()  # clients take the first file in the folder for the trace
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise RequestError(f"output_dir {folder!r}: {error}") from None
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
            # As torch.profiler does for Inductor: CUDA graphs cannot be replayed after CUPTI's teardown.
            os.environ.setdefault("TEARDOWN_CUPTI", "0")
            os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
        self.failure = None
        self._steps_left, self._ends = steps, time.monotonic() + seconds
        self._profile = profile(activities=activities, with_stack=with_stack)
        self._ranks(str(path), with_stack=with_stack)
        self._profile.start()
        self._send(Record())

    @property
    def ends(self) -> float | None:
        """When a running profile ends at the latest (monotonic, s): call `end_in_time` then."""
        return None if self._profile is None else self._ends

    def end_in_time(self) -> None:
        """End a profile whose time is over, or that has no steps left."""
        if self._profile is not None and (self._steps_left <= 0 or time.monotonic() >= self._ends):
            self.stop()

    def step(self) -> None:
        """To be called after each step."""
        self._steps_left -= 1
        self.end_in_time()

    def stop(self) -> None:
        """End the profile and begin to write it (`writing`). Does nothing when none is running."""
        if self._profile is None:
            return
        running, self._profile = self._profile, None
        running.stop()
        self._send(Record(end=True))
        self.writing = True
        with suppress(OSError, RuntimeError):  # on a full disk, add_ranges finds no file
            running.export_chrome_trace(str(self._trace))
        if (why := self._ranks(None)) is not None:
            log.warning("%s", why)

    def add_ranges(self, ranges: Recorded) -> None:
        """Take the ranges of one front end. With the last one, the trace is written, or there is a
        `failure`."""
        self._recorded.append(ranges)
        if len(self._recorded) == self._front_ends:
            try:
                add_ranges(self._trace, self._partial, self._recorded)
                self._partial.replace(self._path)
            except OSError as error:
                has_trace = not isinstance(error, FileNotFoundError)
                reason = error if has_trace else f"{self._trace.parent} may be full"
                self.failure = f"the profile cannot be written: {reason}"
                log.warning("%s", self.failure)
            temporary = self._trace.with_name(f"{self._trace.name}.tmp")  # of torch's export
            for rest in (self._trace, self._partial, temporary):
                with suppress(OSError):
                    rest.unlink(missing_ok=True)
            self._recorded.clear()
            self.writing = False
