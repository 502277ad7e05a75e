"""Memory budget: the bytes that the connections of a process may hold together."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.server.http.errors import RETRY_AFTER, HttpError

#: Bytes that a connection may hold while the process is over its limit, so that `/health` is still answered.
SMALL = 16 << 10


@dataclass(eq=False)
class Budget:
    """The bytes that the connections of one process hold, and the limit."""

    limit: int
    held: int = 0

    @property
    def exceeded(self) -> bool:
        """Whether they hold more than they may."""
        return self.held > self.limit


class Account:
    """One connection's share of a budget."""

    __slots__ = ("_budget", "held")

    def __init__(self, budget: Budget) -> None:
        self._budget, self.held = budget, 0

    def hold(self, size: int) -> None:
        """Count `size` bytes more; fewer where it is negative."""
        self.held += size
        self._budget.held += size

    def check(self, wanted: int = 0) -> None:
        """Raise HttpError (503) where the process has no room for what this connection holds and `wanted`
        bytes more."""
        budget = self._budget
        if budget.held + wanted > budget.limit and self.held + wanted > SMALL:
            message = "the server holds too many requests and unread answers; ask again later"
            raise HttpError(503, message, headers=RETRY_AFTER)

    def close(self) -> None:
        """Release everything."""
        self.hold(-self.held)
