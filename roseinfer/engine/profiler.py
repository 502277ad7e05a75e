"""A torch profile of the engine process, a number of steps long."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from roseinfer.params import RequestError


def nvtx_ranges() -> AbstractContextManager[object]:
    """Every record_function and operator as an NVTX range, for Nsight Systems, where ROSEINFER_NVTX is 1."""
    wanted = os.environ.get("ROSEINFER_NVTX") == "1" and torch.cuda.is_available()
    if not wanted:
        return nullcontext()
    ranges: AbstractContextManager[object] = torch.autograd.profiler.emit_nvtx()  # type: ignore[no-untyped-call]
    return ranges


class StepProfiler:
    """Off until started. A profile ends after its steps or when it is stopped, and is then written."""

    def __init__(self) -> None:
        self._profile: profile | None = None
        self._left = 0
        self._path = Path()

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
        self._left = -1 if steps is None else steps
        self._profile = profile(activities=activities, with_stack=with_stack)
        self._profile.start()

    def step(self) -> None:
        """To be called after each step."""
        if self._profile is not None:
            self._left -= 1
            if self._left == 0:
                self.stop()

    def stop(self) -> None:
        """End the profile and write it; nothing happens when none is going on."""
        if self._profile is None:
            return
        going_on, self._profile = self._profile, None
        going_on.stop()
        partial = self._path.with_name(f".{self._path.name}")
        going_on.export_chrome_trace(str(partial))
        partial.replace(self._path)
