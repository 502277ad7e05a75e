"""Keeps an event loop busy-waiting for a while after work, so that the next event finds it awake."""

from __future__ import annotations

import asyncio
import time


class Spinner:
    """For `seconds` after every `touch` the loop polls instead of sleeping.

    A core that sleeps takes 0.1 ms and more to wake up, several times on a request's way. 0 seconds: never.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._touched = False
        self.awake = False
        self._end = 0.0

    def touch(self) -> None:
        """Busy-wait from now on: there is work, and more is likely to follow."""
        self._touched = self._seconds > 0
        if self._touched and not self.awake:
            self.awake = True
            self._spin()

    def _spin(self) -> None:
        now = time.monotonic()
        if self._touched:
            self._touched, self._end = False, now + self._seconds
        self.awake = now < self._end
        if self.awake:
            self._loop.call_soon(self._spin)
