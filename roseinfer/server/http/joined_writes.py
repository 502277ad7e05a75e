"""Pieces of streams that leave together: a write is a call of the kernel, which costs more than the rest."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class JoinedWrites:
    """Of the connections of one process. Within `with`, pieces are kept; at its end, or with the end of its
    stream, what a connection has kept leaves in one write."""

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
