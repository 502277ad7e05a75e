"""Who sends much is served in turns, so that everybody else is served in between."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

#: Bytes that a connection may send at once, without waiting for its turn.
BURST = 16 << 10
#: Seconds, and turns, of a round: then comes the rest of the event loop.
ROUND = 0.002
TURNS = 16


class Turns:
    """Of the connections of one process."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[float], None]] = deque()
        self._running = False

    def wait(self, take: Callable[[float], None]) -> None:
        """Call `take` when it is this one's turn, with the time (`time.monotonic`, s) when it should end."""
        self._waiting.append(take)
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        end = time.monotonic() + ROUND
        try:
            for _ in range(min(TURNS, len(self._waiting))):
                self._waiting.popleft()(end)
                if time.monotonic() >= end:
                    break
        finally:
            self._running = bool(self._waiting)
            if self._running:
                asyncio.get_running_loop().call_soon(self._round)
