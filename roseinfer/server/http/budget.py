"""Bytes that connections may hold, each alone and all of a process together."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.server.http.errors import HttpError

#: What a connection may hold while the process is over its limit, so that `/health` is still answered.
SMALL = 16 << 10
#: Seconds after which a client that was refused for want of memory may ask again.
RETRY_AFTER = 1


@dataclass(eq=False)
class Budget:
    """What the connections of one process hold, in bytes, and how much they may."""

    limit: int
    held: int = 0

    @property
    def exceeded(self) -> bool:
        """Whether they hold more than they may."""
        return self.held > self.limit


class Account:
    """What one connection holds of a budget."""

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
            raise HttpError(503, message, headers={"retry-after": str(RETRY_AFTER)})

    def close(self) -> None:
        """Give everything back."""
        self.hold(-self.held)
