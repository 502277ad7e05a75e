"""Fair scheduling of connections, so that no client waits for what others send, however many they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from heapq import heappop, heappush

#: Seconds and turns of a round at most, after which the event loop runs other work; seconds of a turn.
ROUND, TURNS = 0.002, 32
TURN = 0.00025
#: Seconds that a turn counts at least: the event loop's own work for a connection is not measured here.
LEAST = 0.00002


class Turn:
    """The turn of one connection. `take` is called with the time at which it should end (monotonic, s)."""

    __slots__ = ("due", "take", "waiting")

    def __init__(self, take: Callable[[float], None]) -> None:
        self.take, self.waiting, self.due = take, False, 0.0

    def cancel(self) -> None:
        """Call nothing any more: the connection has closed."""
        self.take = lambda end: None


class Turns:
    """The turns of the connections of one process.

    Start-time fair queueing (Goyal, Vin and Cheng, 1996): the connection that was served least, in seconds,
    is next, so a new connection comes before all that have had a turn.

    Args:
        clock: Monotonic time (s).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, float, int, Turn]] = []
        self._now = self._latest = 0.0  # virtual time: when the last turn was due; the last end of one
        self._count = 0
        self._current: Turn | None = None
        self._again = self._in_rounds = False  # the current turn waits for another; a round will come
        self._free_at = 0.0  # when the event loop has had as much time for all else as for turns

    def ask(self, turn: Turn) -> None:
        """Take the turn now if no other waits and turns have not taken too much time, else when it comes."""
        now = self._clock()
        if self._waiting or self._current is not None or self._free_at - now > ROUND:
            self.wait(turn)
        else:
            spent = self._take(turn, max(self._now, turn.due), now)
            self._free_at = max(self._free_at, now) + 2 * spent

    def wait(self, turn: Turn) -> None:
        """Take the turn when it comes."""
        if turn is self._current:
            self._again = True
        elif not turn.waiting:
            turn.waiting = True
            self._count += 1
            heappush(self._waiting, (max(self._now, turn.due), turn.due, self._count, turn))
            if not self._in_rounds:
                self._in_rounds = True
                asyncio.get_running_loop().call_soon(self._round)

    def _take(self, turn: Turn, due: float, now: float) -> float:
        """Take a turn and return its duration (s)."""
        self._current, self._now = turn, due
        try:
            turn.take(now + TURN)
        finally:
            self._current = None
            spent = max(self._clock() - now, LEAST)
            turn.due = due + spent
            self._latest = max(self._latest, turn.due)
            if self._again:
                self._again = False
                self.wait(turn)
            elif not self._waiting:
                self._now = self._latest  # service while no other waited does not count later
        return spent

    def _round(self) -> None:
        now = self._clock()
        end = now + ROUND
        try:
            for _ in range(min(TURNS, len(self._waiting))):
                due, _, _, turn = heappop(self._waiting)
                turn.waiting = False
                self._take(turn, due, now)
                now = self._clock()
                if now >= end:
                    break
        finally:
            self._in_rounds = bool(self._waiting)
            if self._in_rounds:
                asyncio.get_running_loop().call_soon(self._round)
