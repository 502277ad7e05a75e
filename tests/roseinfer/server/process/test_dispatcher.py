"""Accepting connections."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from roseinfer.server.metrics.counters import Counters
from roseinfer.server.process import front_ends
from roseinfer.server.process.front_ends import Dispatcher

pytestmark = pytest.mark.integration


class Full(socket.socket):
    """A listener of a process that has no file descriptor left."""

    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        raise OSError(errno.EMFILE, "too many open files")


def test_it_tries_again_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends, "RETRY", 0.05)

    async def test() -> None:
        with Full() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            dispatcher = Dispatcher(listener, [], Counters.create(1), lambda sock: None)
            with socket.create_connection(listener.getsockname()):
                dispatcher.start()
                await asyncio.sleep(0.5)
                dispatcher.stop()
                asked = listener.asked
                assert asked > 1
                await asyncio.sleep(0.2)
                assert listener.asked == asked

    asyncio.run(asyncio.wait_for(test(), 30))
