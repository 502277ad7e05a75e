"""Finds readable sockets, many at a time."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

#: Sockets read in a row before the loop looks at its timers: sending waits for no more than these.
_BATCH = 64


class ReadySet:
    """An epoll set of its own inside the loop's: a ready socket costs a dictionary look-up instead of the
    loop's handle and context."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._read)

    def add(self, fd: int, read: Callable[[], None]) -> None:
        """Call `read` whenever `fd` can be read."""
        self._readers[fd] = read
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Stop calling it; call this before `fd` is closed."""
        del self._readers[fd]
        self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop all calls."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _read(self) -> None:
        readers = self._readers
        for fd, _ in self._epoll.poll(0, _BATCH):
            if fd in readers:  # an earlier one of the batch may have closed it
                readers[fd]()
