"""Bytes that connections hold: a memory budget for all of a process, and the input that is not parsed yet."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.server.http.errors import RETRY_AFTER, HttpError

#: Bytes that a connection may hold while the process is over its limit, so that `/health` is still answered.
SMALL = 16 << 10
#: Bytes that are read, and parsed, at a time: limits are checked between two pieces.
READ = 16 << 10
_END = b"\r\n\r\n"


@dataclass(eq=False)
class Budget:
    """The bytes that the connections of one process hold, and the limit."""

    limit: int = 512 << 20
    held_bytes: int = 0


class Account:
    """One connection's share of a budget."""

    __slots__ = ("_budget", "held_bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget, self.held_bytes = budget, 0

    def hold(self, size: int) -> None:
        """Count `size` bytes more; fewer if it is negative."""
        self.held_bytes += size
        self._budget.held_bytes += size

    def check(self, more: int = 0) -> None:
        """Raise HttpError (503) if the process has no room for what this connection holds and `more`
        bytes."""
        budget = self._budget
        if budget.held_bytes + more > budget.limit and self.held_bytes + more > SMALL:
            message = "the server holds too many requests and unread answers; ask again later"
            raise HttpError(503, message, headers=RETRY_AFTER)


class InputBuffer:
    """Received bytes that are not parsed yet. They count towards the budget."""

    __slots__ = ("_account", "_data")

    def __init__(self, account: Account) -> None:
        self._account, self._data = account, bytearray()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def full(self) -> bool:
        """True if reading should pause."""
        return len(self._data) >= READ

    def add(self, data: bytes | memoryview) -> None:
        """Add received data."""
        self._data += data
        self._account.hold(len(data))

    def take(self) -> bytes:
        """Remove the next piece. A piece with more than one empty line ends at the first. Every head ends
        with an empty line, so a piece has parts of two requests at most."""
        data = self._data
        end = data.find(_END, 0, READ) + len(_END)
        size = READ if end < len(_END) or data.find(_END, end, READ) < 0 else end
        piece = bytes(data[:size])
        del data[:size]
        self._account.hold(-len(piece))
        return piece

    def clear(self) -> None:
        """Drop everything."""
        self._account.hold(-len(self._data))
        self._data = bytearray()
