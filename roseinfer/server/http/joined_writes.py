"""Batches writes to a connection: a write is a system call, which costs more than all else."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class JoinedWrites:
    """Batched writes of the connections of one process. Within `with`, chunks are buffered. Those of a
    connection are sent in one write at the end of the `with`, or of their stream."""

    def __init__(self) -> None:
        self.active = False
        self._kept: list[Callable[[], None]] = []

    def at_end(self, write: Callable[[], None]) -> None:
        """Call `write` at the end of the `with`."""
        self._kept.append(write)

    def __enter__(self) -> None:
        self.active = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.active = False
        kept, self._kept = self._kept, []
        for write in kept:
            write()
