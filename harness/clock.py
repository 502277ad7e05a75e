"""Waking up on time: libuv's timers tick in whole milliseconds, the kernel's in tens of microseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

_TFD_TIMER_ABSTIME = 1


class Alarm:
    """Calls `ring` on the loop at one given time of `time.monotonic()`.

    It is a timerfd in the loop's epoll set (timerfd_create(2)): waiting costs no CPU, and a time in the past
    rings at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = (ctypes.c_long * 4)()  # struct itimerspec: no interval, then seconds and nanoseconds
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._fd, self._expired)

    def set(self, when: float) -> None:
        """Ring at `when` (seconds of `time.monotonic()`); replaces the time set before."""
        self._spec[2], self._spec[3] = divmod(max(1, round(when * 1e9)), 1_000_000_000)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, self._spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Stop ringing for good."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        os.read(self._fd, 8)
        self._ring()
