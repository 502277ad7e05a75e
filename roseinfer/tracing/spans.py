"""Named ranges outside the engine's thread: in front ends, and in threads that tokenize.

This does not import torch, which front ends do not load. Ranges of the engine's thread are in ranges.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import msgspec

_NOTHING = nullcontext()


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A named range of a thread: `start` and `end` in ns since the epoch, `thread` the native thread id."""

    name: str
    start: int
    end: int
    thread: int


class _Recording:
    """A range that becomes a Span of `spans`."""

    __slots__ = ("_name", "_spans", "_start")

    def __init__(self, name: str, spans: list[Span]) -> None:
        self._name, self._spans = name, spans

    def __enter__(self) -> None:
        self._start = time.time_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spans.append(Span(self._name, self._start, time.time_ns(), threading.get_native_id()))


class SpanRecorder:
    """The ranges of one process. They are recorded, become NVTX ranges, or do nothing, in 0.2 us."""

    def __init__(self) -> None:
        self._recorded: list[Span] | None = None
        self._begun: dict[int, int] = {}  # how many ranges came before those of each engine that records
        self._nvtx: Callable[[str], AbstractContextManager[object]] | None = None

    def __call__(self, name: str) -> AbstractContextManager[object]:
        """A range for as long as its context lasts."""
        if self._recorded is not None:
            return _Recording(name, self._recorded)
        return _NOTHING if self._nvtx is None else self._nvtx(name)

    def mark_for_nsys(self) -> None:
        """Make NVTX ranges from now on if ROSEINFER_NVTX is 1, which imports torch."""
        if os.environ.get("ROSEINFER_NVTX") == "1":
            import torch

            if torch.cuda.is_available():
                self._nvtx = torch.cuda.nvtx.range

    def record(self, replica: int) -> None:
        """Record ranges from now on for this replica of the engine."""
        if self._recorded is None:
            self._recorded = []
        self._begun[replica] = len(self._recorded)

    def take(self, replica: int) -> tuple[Span, ...]:
        """Returns the ranges recorded for `replica`, and stops recording if it is the last."""
        recorded = self._recorded or []
        new_ranges = tuple(recorded[self._begun.pop(replica, len(recorded)) :])
        if not self._begun:
            self._recorded = None
        return new_ranges


#: The ranges of this process.
span = SpanRecorder()
