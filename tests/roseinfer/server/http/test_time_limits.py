"""Connections on which nothing moves: each ends by its own limit, and none before it."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from roseinfer.server.http.connection import (
    DRAIN_TIMEOUT,
    IDLE_TIMEOUT,
    LINGER_TIMEOUT,
    RECEIVE_TIMEOUT,
    STALL_TIMEOUT,
    Connection,
)
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import MAX_BODY_BYTES, HttpRequest
from roseinfer.server.http.response import Producer, Response
from tests.roseinfer.server.http.in_process import Server, in_process, read_all, until

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


class Served(Server):
    """A server that gives an endless answer to GET, and `body` to POST."""

    stream: Endless | None = None
    body = b"{}"
    connection: Connection

    async def connect(self, kind: type[Connection] = Connection) -> tuple[socket.socket, Connection]:
        client, self.connection = await super().connect(kind)
        return client, self.connection

    async def answer(self, request: HttpRequest, connection: Connection) -> Response | None:
        if request.method == "GET":
            self.stream = Endless(connection)
            return None
        return Response(200, self.body)

    def later(self, seconds: float) -> None:
        """Sweep as if `seconds` had passed."""
        self.connection.check(time.monotonic() + seconds)


@pytest.mark.parametrize("sent", [ASK[:20], ASK[:-8], ASK[:-1]])
@in_process(Served, asyncio.new_event_loop)
async def test_a_request_that_does_not_come_in_is_answered_with_408(served: Served, sent: bytes) -> None:
    client, _ = await served.connect()
    client.send(sent)
    await until(lambda: served.connection.parser.receiving)
    served.later(RECEIVE_TIMEOUT - SOON)
    assert not served.connection.lingering
    served.later(RECEIVE_TIMEOUT + 1)
    client.send(b"late")
    head, _, body = (await read_all(client)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"connection: close" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    served.later(LINGER_TIMEOUT + 1)  # it never closes its side
    await until(lambda: not served.connections.all)
    assert not served.requests


@in_process(Served, asyncio.new_event_loop)
async def test_a_byte_now_and_then_does_not_keep_a_request_open(served: Served) -> None:
    client, _ = await served.connect()
    client.send(ASK[:20])
    await until(lambda: served.connection.parser.receiving)
    for byte in ASK[20:30]:
        client.send(bytes([byte]))
        await asyncio.sleep(0.001)
    served.later(RECEIVE_TIMEOUT + 1)
    assert (await read_all(client)).startswith(b"HTTP/1.1 408 ")


@in_process(Served, asyncio.new_event_loop)
async def test_an_unused_connection_is_closed_and_a_used_one_counts_anew(served: Served) -> None:
    client, _ = await served.connect()
    served.later(IDLE_TIMEOUT - SOON)
    client.send(ASK)
    await until(lambda: served.requests and not served.connection.busy)
    assert b"200 OK" in await asyncio.get_running_loop().sock_recv(client, 4096)
    served.later(IDLE_TIMEOUT - SOON)
    assert served.connections.all
    served.later(IDLE_TIMEOUT + 1)
    assert await read_all(client) == b""


@in_process(Served, asyncio.new_event_loop)
async def test_who_does_not_read_a_stream_is_dropped(served: Served) -> None:
    client, _ = await served.connect()
    client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await until(lambda: served.stream)
    served.later(STALL_TIMEOUT - SOON)
    assert served.connections.all
    served.later(STALL_TIMEOUT + 1)
    await until(lambda: not served.connections.all)
    assert served.stream is not None and served.stream.closed
    client.close()


@pytest.mark.parametrize("streams", [False, True])
@in_process(Served, asyncio.new_event_loop)
async def test_who_reads_slowly_is_not_dropped(served: Served, streams: bool) -> None:
    """Both while a stream waits for it and after a whole answer that is too large for the buffers."""
    served.body = b"a" * (8 << 20)
    client, connection = await served.connect()
    client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" if streams else ASK)
    await until(lambda: served.stream if streams else served.requests and not connection.busy)
    served.later(0)
    for turn in range(1, 5):
        assert await asyncio.get_running_loop().sock_recv(client, 4096)
        served.later(turn * (STALL_TIMEOUT - SOON))
        assert served.connections.all
    served.later(5 * STALL_TIMEOUT)
    await until(lambda: not served.connections.all)
    client.close()


@in_process(Served, asyncio.new_event_loop)
async def test_who_reads_a_little_now_and_then_is_dropped_in_the_end(served: Served) -> None:
    """Each read moves something, but what waits has a time limit as a whole."""
    served.body = b"a" * (8 << 20)
    client, _ = await served.connect()
    client.send(ASK)
    await until(lambda: served.requests and not served.connection.busy)
    served.later(0)
    turns = 0
    while not served.connection.transport.is_closing():
        turns += 1
        assert await asyncio.get_running_loop().sock_recv(client, 1 << 17)
        await asyncio.sleep(0)
        served.later(turns * (STALL_TIMEOUT - SOON))
    assert 0 < turns * (STALL_TIMEOUT - SOON) - DRAIN_TIMEOUT < STALL_TIMEOUT
    client.close()


@in_process(Served, asyncio.new_event_loop)
async def test_trailers_have_an_end(served: Served) -> None:
    """They come after a chunked body, whose limit does not count them."""
    client, _ = await served.connect()
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
    trailer = b"a: " + b"b" * 65536 + b"\r\n"
    reading = asyncio.ensure_future(read_all(client))
    for _ in range(2 * MAX_BODY_BYTES // len(trailer)):
        await loop.sock_sendall(client, trailer)
        if served.connection.lingering:
            break
    served.later(LINGER_TIMEOUT + 1)
    assert (await reading).startswith(b"HTTP/1.1 431 ")
