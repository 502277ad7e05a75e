"""A torch profile of the engine process, a number of steps long, with the ranges of the front ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from roseinfer.engine.trace import add_ranges
from roseinfer.ipc.messages import Record, Recorded
from roseinfer.params import RequestError


def nvtx_ranges() -> AbstractContextManager[object]:
    """Every record_function and operator as an NVTX range, for Nsight Systems, where ROSEINFER_NVTX is 1."""
    wanted = os.environ.get("ROSEINFER_NVTX") == "1" and torch.cuda.is_available()
    if not wanted:
        return nullcontext()
    ranges: AbstractContextManager[object] = torch.autograd.profiler.emit_nvtx()  # type: ignore[no-untyped-call]
    return ranges


class StepProfiler:
    """Off until started. A profile ends after its steps or when it is stopped, and is written when each of
    the `front_ends`, which `tell` reaches, has told its ranges.
    """

    def __init__(self, front_ends: int, tell: Callable[[Record], None]) -> None:
        self._front_ends, self._tell = front_ends, tell
        self._told: list[Recorded] = []
        self._profile: profile | None = None
        self.writing = False
        self._left = 0
        self._path = self._own = Path()

    def start(self, folder: str, steps: int | None, with_stack: bool) -> None:
        """Profile the next `steps` steps (None: until stopped) into a trace in `folder`.

        Raises:
            RequestError: a profile is going on, or the folder cannot be made.
        """
        if self._profile is not None:
            raise RequestError("a profile is already going on; POST /stop_profile ends it")
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(f"output_dir {folder}: {error.strerror}") from None
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
            # As torch.profiler does for Inductor: replayed graphs do not outlive the end of CUPTI.
            os.environ.setdefault("TEARDOWN_CUPTI", "0")
            os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
        self._path = Path(folder) / f"roseinfer-{os.getpid()}.trace.json.gz"
        self._own = self._path.with_name(f".roseinfer-{os.getpid()}.own.json")
        self._left = -1 if steps is None else steps
        self._profile = profile(activities=activities, with_stack=with_stack)
        self._profile.start()
        self._tell(Record())

    def step(self) -> None:
        """To be called after each step."""
        if self._profile is not None:
            self._left -= 1
            if self._left == 0:
                self.stop()

    def stop(self) -> None:
        """End the profile, which is `writing` from then on; nothing happens when none is going on."""
        if self._profile is None:
            return
        going_on, self._profile = self._profile, None
        going_on.stop()
        self._tell(Record(end=True))
        self.writing = True
        going_on.export_chrome_trace(str(self._own))

    def told(self, ranges: Recorded) -> None:
        """The ranges of one front end; after the last, the trace is there."""
        self._told.append(ranges)
        if len(self._told) == self._front_ends:
            partial = self._path.with_name(f".{self._path.name}")
            add_ranges(self._own, partial, self._told)
            partial.replace(self._path)
            self._own.unlink()
            self._told.clear()
            self.writing = False
