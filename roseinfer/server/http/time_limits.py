"""How long a connection may stay as it is."""

from __future__ import annotations

import time

#: Seconds: for an unused connection, for a request to come in, for a client that does not read its answer
#: at all, and for one that was refused to read why.
IDLE_TIMEOUT = RECEIVE_TIMEOUT = STALL_TIMEOUT = 60.0
LINGER_TIMEOUT = 5.0
#: Seconds for a client to take what waits for it, however often it reads a little: about 16 KiB of a stream,
#: or a whole answer.
DRAIN_TIMEOUT = 300.0


class Reading:
    """How a client reads what was written to it. Times are monotonic (s)."""

    __slots__ = ("_behind_since", "_unread", "last")

    def __init__(self) -> None:
        self.last = self._behind_since = time.monotonic()  # when it has read last
        self._unread = 0

    def caught_up(self) -> None:
        """It has read so much that more is written."""
        self._behind_since = time.monotonic()

    def see(self, unread: int, now: float) -> None:
        """So many bytes are unread now. What the client reads is a move."""
        if unread < self._unread:
            self.last = now
        if not self._unread:
            self._behind_since = now
        self._unread = unread

    def too_slow(self, now: float) -> bool:
        """Whether what waits for the client does so for too long."""
        return bool(self._unread) and now - self._behind_since > DRAIN_TIMEOUT
