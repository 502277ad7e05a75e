"""Accepting connections."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import ExitStack
from itertools import chain

import pytest

from roseinfer.server.metrics.counters import Counters
from roseinfer.server.process.front_ends import Dispatcher

pytestmark = pytest.mark.integration


class Full(socket.socket):
    """A listener of a process that has no file descriptor left."""

    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.asked_again = asyncio.Event()

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        if self.asked > 1:
            self.asked_again.set()
        raise OSError(errno.EMFILE, "too many open files")


def test_it_tries_again_until_it_is_stopped() -> None:
    async def test() -> None:
        with Full() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            dispatcher = Dispatcher(listener, [], Counters.create(1), lambda sock: None, retry=0.05)
            with socket.create_connection(listener.getsockname()):
                dispatcher.start()
                await listener.asked_again.wait()
                dispatcher.stop()
                asked = listener.asked
                await asyncio.sleep(0.2)
                assert listener.asked == asked

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_front_end_that_takes_no_connection_is_passed_over() -> None:
    """The next of those with the fewest open connections gets it."""

    async def test() -> None:
        adopted: list[socket.socket] = []
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        (stuck, _), (other, front_end) = pairs
        for handover, _ in pairs:
            handover.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                stuck.send(b"c")
        with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listener:
            for sock in chain(*pairs):
                stack.enter_context(sock)
            dispatcher = Dispatcher(listener, [stuck, other], Counters.create(3), adopted.append)
            for number in range(4):  # to 0, other, 0, other
                stack.enter_context(socket.create_connection(listener.getsockname()))
                dispatcher._accept()
                assert len(adopted) == 1 + number // 2
            for _ in range(2):
                _, given, _, _ = socket.recv_fds(front_end, 1, 1)
                assert len(given) == 1
                os.close(*given)
            for sock in adopted:
                sock.close()

    asyncio.run(asyncio.wait_for(test(), 30))
