"""Front ends as processes: which connections each gets, and what clients that leave cost them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest

from roseinfer.server.metrics.counters import Counters
from roseinfer.server.process.front_ends import Dispatcher
from tests.roseinfer.server.clients import ask, first_chunk, in_loop, leave, wait_for

pytestmark = pytest.mark.integration


class Full(socket.socket):
    """A listener of a process that has no file descriptor left."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.asked_again = asyncio.Event()

    def accept(self) -> tuple[socket.socket, object]:
        self.calls += 1
        if self.calls > 1:
            self.asked_again.set()
        raise OSError(errno.EMFILE, "too many open files")


@in_loop
async def test_it_tries_again_until_it_is_stopped() -> None:
    with Full() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        dispatcher = Dispatcher(listener, [], Counters.create(1), lambda sock: None, retry=0.05)
        with socket.create_connection(listener.getsockname()):
            dispatcher.start()
            await listener.asked_again.wait()
            dispatcher.stop()
            calls = listener.calls
            await asyncio.sleep(0.2)
            assert listener.calls == calls


@in_loop
async def test_a_front_end_that_takes_no_connection_is_passed_over() -> None:
    """The next of those with the fewest open connections gets it."""
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
            dispatcher.accept()
            assert len(adopted) == 1 + number // 2
        for _ in range(2):
            _, descriptors, _, _ = socket.recv_fds(front_end, 1, 1)
            assert len(descriptors) == 1
            os.close(*descriptors)
        for sock in adopted:
            sock.close()


def sockets(process: psutil.Process) -> int:
    """The sockets that a process has open."""
    count = 0
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += str(link.readlink()).startswith("socket:")
    return count


def test_hundreds_of_clients_leave(serving: Any, text_model: Any) -> None:
    """Their whole answers would have 270,000 tokens."""
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda index: leave(serving, index), range(300)))
    assert serving.becomes_idle()
    body = serving.complete(text_model.prompt, max_tokens=6, ignore_eos=True, return_token_ids=True).json
    assert body["choices"][0]["token_ids"] == text_model.answer[:6]


def test_load_shows_what_runs(serving: Any) -> None:
    clients = [ask(serving, index) for index in range(3)]
    for client in clients:
        first_chunk(client)
    load = serving.load()
    assert load["running"] == 3 and load["waiting"] == 0 and load["inflight"] == 3
    assert 0 < load["kv_usage"] < 1
    assert "in flight" in serving.request("/integrity").json["error"]["message"]
    for client in clients:
        client.close()
    assert serving.becomes_idle()


def test_connections_are_shared_evenly_until_a_front_end_is_killed(serve: Any, fake: Any) -> None:
    """Kept connections count as well, and those that have closed do not. A server that answers only some of
    its clients ends."""
    server = serve("--frontend-processes", "3", **fake)
    processes = [psutil.Process(server.process.pid), *server.front_ends]
    before = [*map(sockets, processes)]

    def opened() -> list[int]:
        """Connections of each process."""
        return [sockets(process) - count for process, count in zip(processes, before, strict=True)]

    clients = [ask(server, index, tokens=2) for index in range(9)]
    for client in clients:
        first_chunk(client)
    assert wait_for(lambda: opened() == [3, 3, 3])
    for client in clients[:3]:
        client.close()
    assert wait_for(lambda: opened() == [2, 2, 2])
    clients += [ask(server, index) for index in range(3)]
    for client in clients[9:]:
        first_chunk(client)
    assert wait_for(lambda: opened() == [3, 3, 3])

    server.front_ends[1].kill()
    assert server.ended()
    assert server.process.returncode == 1
    assert "front end 2" in server.log[-1] and "SIGKILL" in server.log[-1]
