"""Spans on the host and on the device, in columns: the content of both kinds of profile."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import BenchError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class TraceError(BenchError):
    """A file of a profiler cannot be used; the others of the run can."""

    def __init__(self, path: Path, reason: str, hint: str) -> None:
        super().__init__(f"{path.name}: {reason}", hint)
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class Spans:
    """S spans. Times are µs on one clock.

    Attributes:
        name: (S,) index into the timeline's names.
        start, end: (S,)
        thread: (S,) identifies a host thread or a device stream.
        link: (S,) joins a device span with the call that launched it; -1: none.
    """

    name: Ints
    start: Floats
    end: Floats
    thread: Ints
    link: Ints

    def __len__(self) -> int:
        return len(self.start)

    def take(self, which: Ints | npt.NDArray[np.bool_]) -> Spans:
        """The spans at these positions, or where the mask is true."""
        return Spans(
            self.name[which], self.start[which], self.end[which], self.thread[which], self.link[which]
        )


@dataclass(frozen=True)
class Timeline:
    """One profile. `ops` are the operators of the host, `calls` its calls into CUDA, `ranges` what programs
    marked themselves (record_function, NVTX), `device` kernels, copies and sets."""

    names: list[str]
    ops: Spans
    calls: Spans
    ranges: Spans
    device: Spans


@dataclass
class Column:
    """Spans while they are being read: 40 bytes each."""

    name: array[int] = field(default_factory=lambda: array("q"))
    start: array[float] = field(default_factory=lambda: array("d"))
    end: array[float] = field(default_factory=lambda: array("d"))
    thread: array[int] = field(default_factory=lambda: array("q"))
    link: array[int] = field(default_factory=lambda: array("q"))

    def add(self, name: int, start: float, end: float, thread: int, link: int = -1) -> None:
        self.name.append(name)
        self.start.append(start)
        self.end.append(end)
        self.thread.append(thread)
        self.link.append(link)

    def spans(self) -> Spans:
        """Return arrays, by start; of those that start together the longest first: it encloses the others."""
        start, end = np.array(self.start, np.float64), np.array(self.end, np.float64)
        order = np.lexsort((-end, start))
        name, thread, link = (np.array(column, np.int64) for column in (self.name, self.thread, self.link))
        return Spans(name[order], start[order], end[order], thread[order], link[order])


def numbering() -> defaultdict[Any, int]:
    """Return a mapping that gives each different key the next number, from 0."""
    return defaultdict(count().__next__)
