"""A torch profile of a rank other than 0, which rank 0 starts and ends."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


class RankProfile:
    """Off until started."""

    def __init__(self) -> None:
        self._running: profile | None = None
        self._path = Path()

    def start(self, path: Path, with_stack: bool) -> None:
        """Start profiling; the trace (gzip) goes to `path`."""
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._path, self._running = path, profile(activities=activities, with_stack=with_stack)
        self._running.start()

    def stop(self) -> str | None:
        """End the profile and write the trace. Returns an error message, or None."""
        if self._running is None:
            return None
        running, self._running = self._running, None
        running.stop()
        partial = self._path.with_name(f".{self._path.name}")
        try:
            running.export_chrome_trace(str(partial))
            partial.replace(self._path)
        except (OSError, RuntimeError) as error:
            return f"the profile of a rank cannot be written: {error}"
        return None
