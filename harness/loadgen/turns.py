"""Later turns of sessions: each is sent when the answer before it has ended and the person has thought.

A turn that carries the engine's own answers is due so long after its body was ready: reading an answer of
thousands of tokens takes this client milliseconds, for which the turn cannot be sent yet.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from time import monotonic

from harness.clock import Alarm
from harness.loadgen.client import Client
from harness.loadgen.load_plan import RawResponse, WireRequest


class Turns:
    """Sends the turns that have a time to think, which are no part of a schedule."""

    def __init__(self, client: Client, requests: Sequence[WireRequest]) -> None:
        self._client = client
        self._next = {
            r.after: (r.index, r.think_s) for r in requests if r.after is not None and r.think_s is not None
        }
        self._live = {r.index for r in requests if r.answers}
        self._due: list[tuple[float, int]] = []
        self._alarm = Alarm(asyncio.get_running_loop(), self._wake)

    def follows(self, response: RawResponse) -> bool:
        """Whether a turn follows the response, which has ended and been read; it will be sent."""
        if response.index not in self._next:
            return False
        index, think_s = self._next[response.index]
        ready = None if index in self._live else response.t_end
        heapq.heappush(self._due, ((ready or monotonic()) + think_s, index))
        self._wake()
        return True

    def close(self) -> None:
        """Send nothing more."""
        self._alarm.close()

    def _wake(self) -> None:
        while self._due and self._due[0][0] <= monotonic():
            t_due, index = heapq.heappop(self._due)
            self._client.submit(index, t_due, 0.0)
        if self._due:
            self._alarm.set(self._due[0][0])
