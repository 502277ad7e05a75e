"""Connections on which nothing moves: each ends by its own limit, and none before it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from roseinfer.server.http.connection import (
    DRAIN_TIMEOUT,
    IDLE_TIMEOUT,
    LINGER_TIMEOUT,
    RECEIVE_TIMEOUT,
    STALL_TIMEOUT,
    Connection,
)
from roseinfer.server.http.connections import Connections
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import MAX_BODY_BYTES, HttpRequest
from roseinfer.server.http.response import Producer, Response
from roseinfer.server.openai.responses import error_response

#: What may pass between two lines of a test, s.
SOON = 20.0

ASK = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"


class Endless(Producer):
    """An answer that fills its client's buffers and then waits."""

    def __init__(self, connection: Connection) -> None:
        self.closed = False
        self.paused = asyncio.Event()
        connection.answer_with(self)
        write = connection.begin_stream(b"a")
        while not self.paused.is_set():
            write(b"a" * 65536)

    def pause(self) -> None:
        self.paused.set()

    def resume(self) -> None:
        self.paused.clear()

    def close(self) -> None:
        self.closed = True

    def fail(self, error: HttpError) -> None:
        self.closed = True


class Served:
    """One client's socket, and the connection on the server's side. A GET gets an endless answer."""

    def __init__(self) -> None:
        self.connections = Connections(self.handle, error_response, lambda: None)
        self.stream: Endless | None = None
        self.requests: list[HttpRequest] = []
        self.body = b"{}"

    async def handle(self, request: HttpRequest, connection: Connection) -> Response | None:
        self.requests.append(request)
        if request.method == "GET":
            self.stream = Endless(connection)
            return None
        return Response(200, self.body)

    async def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self.connections), theirs)
        (self.connection,) = self.connections.all
        return ours

    def later(self, seconds: float) -> None:
        """As if `seconds` had passed before the next sweep."""
        self.connection.check(time.monotonic() + seconds)


async def rest(client: socket.socket) -> bytes:
    """What comes until the server closes."""
    data = b""
    with suppress(ConnectionResetError):
        while more := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            data += more
    return data


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


def run(test: Callable[[Served], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(Served()), 30)

    asyncio.run(limited())


@pytest.mark.parametrize("sent", [ASK[:20], ASK[:-8], ASK[:-1]])
def test_a_request_that_does_not_come_in_is_answered_with_408(sent: bytes) -> None:
    async def test(served: Served) -> None:
        client = await served.connect()
        client.send(sent)
        await until(lambda: served.connection._parser.receiving)
        served.later(RECEIVE_TIMEOUT - SOON)
        assert not served.connection._lingering
        served.later(RECEIVE_TIMEOUT + 1)
        client.send(b"late")
        head, _, body = (await rest(client)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ") and b"connection: close" in head
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        served.later(LINGER_TIMEOUT + 1)  # it never closes its side
        await until(lambda: not served.connections.all)
        assert not served.requests

    run(test)


def test_a_byte_now_and_then_does_not_keep_a_request_open() -> None:
    async def test(served: Served) -> None:
        client = await served.connect()
        client.send(ASK[:20])
        await until(lambda: served.connection._parser.receiving)
        for byte in ASK[20:30]:
            client.send(bytes([byte]))
            await asyncio.sleep(0.001)
        served.later(RECEIVE_TIMEOUT + 1)
        assert (await rest(client)).startswith(b"HTTP/1.1 408 ")

    run(test)


def test_an_unused_connection_is_closed_and_a_used_one_counts_anew() -> None:
    async def test(served: Served) -> None:
        client = await served.connect()
        served.later(IDLE_TIMEOUT - SOON)
        client.send(ASK)
        await until(lambda: served.requests and not served.connection.busy)
        assert b"200 OK" in await asyncio.get_running_loop().sock_recv(client, 4096)
        served.later(IDLE_TIMEOUT - SOON)
        assert served.connections.all
        served.later(IDLE_TIMEOUT + 1)
        assert await rest(client) == b""

    run(test)


def test_who_does_not_read_a_stream_is_dropped() -> None:
    async def test(served: Served) -> None:
        client = await served.connect()
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: served.stream)
        served.later(STALL_TIMEOUT - SOON)
        assert served.connections.all
        served.later(STALL_TIMEOUT + 1)
        await until(lambda: not served.connections.all)
        assert served.stream is not None and served.stream.closed
        client.close()

    run(test)


def test_who_reads_slowly_is_not_dropped() -> None:
    """Both while a stream waits for it and after a whole answer that is too large for the buffers."""

    async def read(served: Served, client: socket.socket) -> None:
        for turn in range(1, 5):
            assert await asyncio.get_running_loop().sock_recv(client, 4096)
            served.later(turn * (STALL_TIMEOUT - SOON))
            assert served.connections.all
        served.later(5 * STALL_TIMEOUT)
        await until(lambda: not served.connections.all)
        client.close()

    async def stream(served: Served) -> None:
        client = await served.connect()
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: served.stream)
        served.later(0)
        await read(served, client)

    async def whole(served: Served) -> None:
        served.body = b"a" * (8 << 20)
        client = await served.connect()
        client.send(ASK)
        await until(lambda: served.requests and not served.connection.busy)
        served.later(0)
        await read(served, client)

    run(stream)
    run(whole)


def test_who_reads_a_little_now_and_then_is_dropped_in_the_end() -> None:
    """Each read moves something, but what waits has a time limit as a whole."""

    async def test(served: Served) -> None:
        served.body = b"a" * (8 << 20)
        client = await served.connect()
        client.send(ASK)
        await until(lambda: served.requests and not served.connection.busy)
        served.later(0)
        turns = 0
        while not served.connection._transport.is_closing():
            turns += 1
            assert await asyncio.get_running_loop().sock_recv(client, 1 << 17)
            await asyncio.sleep(0)
            served.later(turns * (STALL_TIMEOUT - SOON))
        assert 0 < turns * (STALL_TIMEOUT - SOON) - DRAIN_TIMEOUT < STALL_TIMEOUT
        client.close()

    run(test)


def test_trailers_have_an_end() -> None:
    """They come after a chunked body, whose limit does not count them."""

    async def test(served: Served) -> None:
        client = await served.connect()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(
            client, b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
        )
        trailer = b"a: " + b"b" * 65536 + b"\r\n"
        reading = asyncio.ensure_future(rest(client))
        for _ in range(2 * MAX_BODY_BYTES // len(trailer)):
            await loop.sock_sendall(client, trailer)
            if served.connection._lingering:
                break
        served.later(LINGER_TIMEOUT + 1)
        assert (await reading).startswith(b"HTTP/1.1 431 ")

    run(test)
