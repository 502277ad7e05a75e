"""What is wrong with a profile."""

from __future__ import annotations

from pathlib import Path

from harness.errors import BenchError


class TraceError(BenchError):
    """A file of a profiler cannot be used; the others of the run can."""

    def __init__(self, path: Path, reason: str, hint: str) -> None:
        super().__init__(f"{path.name}: {reason}", hint)
        self.path = path
        self.reason = reason
