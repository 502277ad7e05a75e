"""Bytes that connections hold: few, whatever a client sends or leaves unread, and none once it has gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
import weakref
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.http.buffers import READ, Account, Budget, InputBuffer
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.errors import HttpError
from tests.roseinfer.server.clients import answer, connect, post, wait_for
from tests.roseinfer.server.http.in_process import Server, in_process, receive, until

MIB = 1 << 20


@in_process
async def test_the_next_request_waits_until_the_answer_is_taken(server: Server) -> None:
    client, connection = await server.connect()
    client.send(b"".join(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % size for size in (8 * MIB, 1, 2)))
    await until(lambda: server.requests and not connection.busy)
    await asyncio.sleep(0.05)
    assert server.requests == [f"/{8 * MIB}"]
    assert 4 * MIB < server.budget.held_bytes == connection.account.held_bytes
    read = 0
    while len(server.requests) < 3:
        read += len(await asyncio.get_running_loop().sock_recv(client, MIB))
    assert read > 4 * MIB
    await until(lambda: not connection.busy)
    assert server.budget.held_bytes == 0


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

    @in_process
    async def test(server: Server) -> None:
        for sent in states:
            client, connection = await server.connect()
            with contextlib.suppress(BlockingIOError):
                client.send(sent)
            await asyncio.sleep(0.05)
            client.close()
            connection.check(time.monotonic() + 1000)  # some have to be ended
            parser = weakref.ref(connection.parser)
            gone = weakref.ref(connection)
            del connection
            await until(lambda: not server.connections.all)
            await asyncio.sleep(0.01)
            assert (gone(), parser()) == (None, None), sent[:50]
            assert server.budget.held_bytes == 0

    gc.collect()
    gc.disable()
    try:
        test()
    finally:
        gc.enable()


@in_process
async def test_pipelined_bytes_are_not_read_without_end(server: Server) -> None:
    client, connection = await server.connect()
    client.send(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % (8 * MIB))
    await until(lambda: server.requests)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 32 * MIB:
            async with asyncio.timeout(0.2):
                await asyncio.get_running_loop().sock_sendall(client, b" " * 65536)
            sent += 65536
    assert sent < 4 * MIB and len(connection.input) < 2 * READ
    client.close()
    connection.check(time.monotonic())
    await until(lambda: not server.connections.all)


@in_process
async def test_an_answer_does_not_lengthen_the_time_to_read_the_one_before(server: Server) -> None:
    client, connection = await server.connect()
    client.send(b"GET /9999999 HTTP/1.1\r\nhost: a\r\n\r\n" * 3)
    await until(lambda: server.requests and not connection.busy)
    connection.check(time.monotonic())
    connection.check(time.monotonic() + 61)
    await until(lambda: not server.connections.all)


@in_process
async def test_errors_come_after_the_answers_before_them(server: Server) -> None:
    client, _ = await server.connect()
    client.send(b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\nno http\r\n\r\n")
    data = await receive(client)
    assert data.startswith(b"HTTP/1.1 200 ") and data.count(b"HTTP/1.1 400 ") == 1


@in_process
async def test_who_leaves_most_unread_is_ended_when_there_is_no_room(server: Server) -> None:
    client, _ = await server.connect()
    client.send(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % (80 * MIB))
    await until(lambda: server.budget.held_bytes > server.budget.limit)
    server.connections.sweep()
    await until(lambda: not server.connections.all)
    assert server.budget.held_bytes == 0


@in_process
async def test_a_new_client_is_served_before_those_that_send_without_end(server: Server) -> None:
    """However many they are, and whatever waits of theirs."""
    loop = asyncio.get_running_loop()
    before: list[int] = []  # requests answered when a new client's came

    class New(Connection):
        def receive(self, data: bytes | memoryview) -> None:
            before.append(len(server.requests))
            super().receive(data)

    async def flood() -> None:
        client, _ = await server.connect()
        with client:
            while True:
                await loop.sock_sendall(client, b"GET /old HTTP/1.1\r\nhost: a\r\n\r\n" * 100)

    floods = [asyncio.ensure_future(flood()) for _ in range(100)]
    await until(lambda: server.requests.count("/old") > 500)
    for number in range(1, 10):
        client, _ = await server.connect(New)
        with client:
            await loop.sock_sendall(client, b"GET /new%d HTTP/1.1\r\nhost: a\r\n\r\n" % number)
            await until(lambda number=number: f"/new{number}" in server.requests)  # type: ignore[misc]
        assert server.requests.index(f"/new{number}") - before[-1] <= 1
    for task in floods:
        task.cancel()
    await asyncio.wait(floods)


@in_process
async def test_who_sends_no_more_is_read_to_the_end(server: Server) -> None:
    """Also where more waits than is read."""
    client, connection = await server.connect()
    large, small = (b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % size for size in (8 * MIB, 1))
    client.send(large + small * 2000)
    client.shutdown(socket.SHUT_WR)
    await until(lambda: connection.paused and connection.input.full)
    connection.check(time.monotonic())
    answers = 0
    while more := await asyncio.get_running_loop().sock_recv(client, MIB):
        answers += more.count(b"HTTP/1.1 200 ")
    assert answers > 1990  # some in two pieces
    assert len(server.requests) == 2001


@given(pieces=st.lists(st.binary(max_size=40) | st.sampled_from([b"\r\n\r\n", b"a" * READ]), max_size=8))
def test_pieces_have_one_empty_line_or_end_with_one(pieces: list[bytes]) -> None:
    budget = Budget(MIB)
    unparsed = InputBuffer(Account(budget))
    for piece in pieces:
        unparsed.add(piece)
    pieces_out = []
    while unparsed:
        piece = unparsed.take()
        pieces_out.append(piece)
        assert budget.held_bytes == len(unparsed)
        assert 0 < len(piece) <= READ
        assert piece.count(b"\r\n\r\n") < 2 or piece.find(b"\r\n\r\n") == len(piece) - 4
    assert b"".join(pieces_out) == b"".join(pieces)


@in_process
async def test_an_error_says_so_before_the_body_is_sent(server: Server) -> None:
    """To a client that asks; what is refused costs no memory."""
    server.connections.admit = lambda request: HttpError(401, "no")
    client, _ = await server.connect()
    head = b"POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n"
    client.send(head + b"\r\n12345" + head + b"expect: 100-continue\r\n\r\n")
    data = await receive(client)
    assert data.count(b"HTTP/1.1 401 ") == 2 and b"100 Continue" not in data
    assert server.requests == [] and server.budget.held_bytes == 0


def test_a_full_server_says_when_to_ask_again(serve: Any, fake: Any) -> None:
    """It still answers small requests, and has room again when the others have left."""
    server = serve("--frontend-processes", "1", "--max-buffered-mib", "8", **fake)
    half = post(b" " * (6 * MIB))[: 5 * MIB]
    body = {"prompt": "a" * 100_000, "max_tokens": 1}
    with connect(server, half), connect(server) as second:
        large = {"prompt": "a" * (4 * MIB)}
        assert wait_for(lambda: server.request("/v1/completions", large).status == 503)
        reply = server.request("/v1/completions", large)
        assert int(reply.headers["retry-after"]) >= 1 and reply.json["error"]["type"] == "server_error"
        assert b" 503 " in answer(second, half)
        assert server.request("/health").status == 200
        assert server.complete([1], max_tokens=1).status == 200
    assert wait_for(lambda: server.request("/v1/completions", body).status != 503)
    reply = server.request("/v1/completions", body)
    assert reply.status == 400 and reply.json["error"]["param"] == "prompt"  # longer than the context
