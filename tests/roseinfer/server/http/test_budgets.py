"""What a connection holds: little, whatever its client sends or leaves unread, and nothing once gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.http.buffers import READ, Account, Budget, InputBuffer
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.connections import Connections
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.response import Response
from roseinfer.server.openai.responses import error_response

MIB = 1 << 20


class Handler:
    """Answers with as much as the path says."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.budget = Budget(64 * MIB)
        self.connections = Connections(
            self.handle, error_response, lambda: None, lambda request: None, self.budget
        )

    async def handle(self, request: HttpRequest, connection: Connection) -> Response:
        self.requests.append(request.path)
        return Response(200, b"a" * int(request.path[1:]))

    async def connect(self) -> tuple[socket.socket, Connection]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self.connections), theirs)
        (connection,) = self.connections.all
        return ours, connection


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def run(test: Callable[[Handler], Any]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def limited() -> None:
            await asyncio.wait_for(test(Handler()), 30)

        runner.run(limited())


def test_the_next_request_waits_until_the_answer_is_taken() -> None:
    async def test(handler: Handler) -> None:
        client, connection = await handler.connect()
        client.send(b"".join(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % size for size in (8 * MIB, 1, 2)))
        await until(lambda: handler.requests and not connection.busy)
        await asyncio.sleep(0.05)
        assert handler.requests == [f"/{8 * MIB}"]
        assert 4 * MIB < handler.budget.held == connection._account.held
        read = 0
        while len(handler.requests) < 3:
            read += len(await asyncio.get_running_loop().sock_recv(client, MIB))
        assert read > 4 * MIB
        await until(lambda: not connection.busy)
        assert handler.budget.held == 0
        client.close()

    run(test)


def test_a_closed_connection_is_freed_at_once() -> None:
    """Without the garbage collector, whatever state it was in."""
    states = [
        b"",
        b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /1 HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 5000,
        b"POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 999999\r\n\r\n" + b"a" * 100_000,
        b"GET /9999999 HTTP/1.1\r\nhost: a\r\n\r\n" * 2000,
        b"no http\r\n\r\n",
    ]

    async def test(handler: Handler) -> None:
        for sent in states:
            client, connection = await handler.connect()
            with contextlib.suppress(BlockingIOError):
                client.send(sent)
            await asyncio.sleep(0.05)
            client.close()
            connection.check(time.monotonic() + 1000)  # some have to be ended
            parser = weakref.ref(connection._parser)
            gone = weakref.ref(connection)
            del connection
            await until(lambda: not handler.connections.all)
            await asyncio.sleep(0.01)
            assert (gone(), parser()) == (None, None), sent[:50]
            assert handler.budget.held == 0

    gc.collect()
    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()


def test_pipelined_bytes_are_not_read_without_end() -> None:
    async def test(handler: Handler) -> None:
        client, connection = await handler.connect()
        client.send(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % (8 * MIB))
        await until(lambda: handler.requests)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 32 * MIB:
                async with asyncio.timeout(0.2):
                    await asyncio.get_running_loop().sock_sendall(client, b" " * 65536)
                sent += 65536
        assert sent < 4 * MIB and len(connection._input) < 2 * READ
        client.close()
        connection.check(time.monotonic())
        await until(lambda: not handler.connections.all)

    run(test)


def test_an_answer_does_not_lengthen_the_time_to_read_the_one_before() -> None:
    async def test(handler: Handler) -> None:
        client, connection = await handler.connect()
        client.send(b"GET /9999999 HTTP/1.1\r\nhost: a\r\n\r\n" * 3)
        await until(lambda: handler.requests and not connection.busy)
        connection.check(time.monotonic())
        connection.check(time.monotonic() + 61)
        await until(lambda: not handler.connections.all)
        client.close()

    run(test)


def test_errors_come_after_the_answers_before_them() -> None:
    async def test(handler: Handler) -> None:
        client, _ = await handler.connect()
        client.send(b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\nno http\r\n\r\n")
        data = b""
        while more := await asyncio.get_running_loop().sock_recv(client, 4096):
            data += more
        assert data.startswith(b"HTTP/1.1 200 ") and data.count(b"HTTP/1.1 400 ") == 1
        client.close()

    run(test)


def test_who_leaves_most_unread_is_ended_when_there_is_no_room() -> None:
    async def test(handler: Handler) -> None:
        client, _ = await handler.connect()
        client.send(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % (80 * MIB))
        await until(lambda: handler.budget.held > handler.budget.limit)
        handler.connections.sweep()
        await until(lambda: not handler.connections.all)
        assert handler.budget.held == 0
        client.close()

    run(test)


def test_a_new_client_is_served_before_those_that_send_without_end() -> None:
    """However many they are, and whatever waits of theirs."""

    async def test(handler: Handler) -> None:
        loop = asyncio.get_running_loop()
        before: list[int] = []  # requests answered when a new client's came

        def answer(request: HttpRequest, connection: Connection) -> Response:
            handler.requests.append(request.path)
            return Response(200)

        handler.connections.handler = answer

        class New(Connection):
            def receive(self, data: bytes | memoryview) -> None:
                before.append(len(handler.requests))
                super().receive(data)

        async def flood() -> None:
            client, _ = await connect(Connection)
            with client:
                while True:
                    await loop.sock_sendall(client, b"GET /0 HTTP/1.1\r\nhost: a\r\n\r\n" * 100)

        async def connect(kind: type[Connection]) -> tuple[socket.socket, Connection]:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            _, connection = await loop.connect_accepted_socket(lambda: kind(handler.connections), theirs)
            return ours, connection

        floods = [asyncio.ensure_future(flood()) for _ in range(100)]
        await until(lambda: handler.requests.count("/0") > 500)
        for number in range(1, 10):
            client, _ = await connect(New)
            with client:
                await loop.sock_sendall(client, b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number)
                await until(lambda number=number: f"/{number}" in handler.requests)  # type: ignore[misc]
            assert handler.requests.index(f"/{number}") - before[-1] <= 1
        for task in floods:
            task.cancel()
        await asyncio.wait(floods)

    run(test)


def test_who_sends_no_more_is_read_to_the_end() -> None:
    """Also where more waits than is read."""

    async def test(handler: Handler) -> None:
        client, connection = await handler.connect()
        large, small = (b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % size for size in (8 * MIB, 1))
        client.send(large + small * 2000)
        client.shutdown(socket.SHUT_WR)
        await until(lambda: connection._paused and connection._input.full)
        connection.check(time.monotonic())
        answers = 0
        while more := await asyncio.get_running_loop().sock_recv(client, MIB):
            answers += more.count(b"HTTP/1.1 200 ")
        assert answers > 1990  # some in two pieces
        assert len(handler.requests) == 2001
        client.close()

    run(test)


@given(pieces=st.lists(st.binary(max_size=40) | st.sampled_from([b"\r\n\r\n", b"a" * READ]), max_size=8))
def test_pieces_have_one_empty_line_or_end_with_one(pieces: list[bytes]) -> None:
    budget = Budget(MIB)
    unparsed = InputBuffer(Account(budget))
    for piece in pieces:
        unparsed.add(piece)
    taken = []
    while unparsed:
        taken.append(unparsed.take())
        assert budget.held == len(unparsed)
        assert 0 < len(taken[-1]) <= READ
        assert taken[-1].count(b"\r\n\r\n") < 2 or taken[-1].find(b"\r\n\r\n") == len(taken[-1]) - 4
    assert b"".join(taken) == b"".join(pieces)


def test_an_error_says_so_before_the_body_is_sent() -> None:
    """To a client that asks; what is refused costs no memory."""

    async def test(handler: Handler) -> None:
        handler.connections.admit = lambda request: HttpError(401, "no")
        client, _ = await handler.connect()
        head = b"POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n"
        client.send(head + b"\r\n12345" + head + b"expect: 100-continue\r\n\r\n")
        data = b""
        while more := await asyncio.get_running_loop().sock_recv(client, 4096):
            data += more
        assert data.count(b"HTTP/1.1 401 ") == 2 and b"100 Continue" not in data
        assert handler.requests == [] and handler.budget.held == 0
        client.close()

    run(test)
