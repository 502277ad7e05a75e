"""How long a connection may make no progress."""

from __future__ import annotations

import time

#: Seconds: for an idle connection, for a request to arrive, for a client that does not read its answer at
#: all; and for a client that was refused to read the error.
IDLE_TIMEOUT = RECEIVE_TIMEOUT = STALL_TIMEOUT = 60.0
LINGER_TIMEOUT = 5.0
#: Seconds for a client to read what is buffered for it, even if it reads a little now and then: about 16 KiB
#: of a stream, or a whole answer.
DRAIN_TIMEOUT = 300.0


class Reading:
    """Tracks how a client reads what was written to it. Times are monotonic (s)."""

    __slots__ = ("_behind_since", "_unread", "last")

    def __init__(self) -> None:
        self.last = self._behind_since = time.monotonic()  # when it has read last
        self._unread = 0

    def caught_up(self) -> None:
        """The client has read so much that more is written."""
        self._behind_since = time.monotonic()

    def see(self, unread: int, now: float) -> None:
        """`unread` bytes are unread at the time `now`; fewer than before are progress."""
        if unread < self._unread:
            self.last = now
        if not self._unread:
            self._behind_since = now
        self._unread = unread

    def too_slow(self, now: float) -> bool:
        """Whether buffered data has waited for the client for too long."""
        return bool(self._unread) and now - self._behind_since > DRAIN_TIMEOUT
