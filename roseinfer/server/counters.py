"""Numbers that all front ends can read: one row for each, written by that one alone."""

from __future__ import annotations

import mmap
import os

import numpy as np

#: Columns.
INFLIGHT, CLOSED = range(2)
_WIDTH = 2


class Counters:
    """Shared memory behind the descriptor `fd`."""

    def __init__(self, fd: int, front_ends: int, own: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, front_ends * _WIDTH * 8)
        self._table = np.frombuffer(self._memory, np.float64).reshape(front_ends, _WIDTH)
        self._own = self._table[own]

    @classmethod
    def create(cls, front_ends: int) -> Counters:
        """For the first front end; the others open its descriptor."""
        fd = os.memfd_create("roseinfer-counters")
        os.ftruncate(fd, front_ends * _WIDTH * 8)
        return cls(fd, front_ends, 0)

    @property
    def inflight(self) -> int:
        """Answers under way, in all front ends."""
        return int(self._table[:, INFLIGHT].sum())

    def closed(self) -> list[int]:
        """Connections that each front end has had and closed."""
        return [int(count) for count in self._table[:, CLOSED]]

    def set_inflight(self, count: int) -> None:
        self._own[INFLIGHT] = count

    def count_closed(self) -> None:
        self._own[CLOSED] += 1
