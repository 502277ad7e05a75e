"""Answers that are there at once, and streams: what is written, and in how many pieces."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from itertools import count

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.http.connection import Connection
from roseinfer.server.http.connections import Connections
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.response import Answer, Producer, Response
from roseinfer.server.openai.responses import error_response

GET = b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n"


class Stream(Producer):
    """Writes what the test says."""

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def close(self) -> None:
        pass

    def fail(self, error: HttpError) -> None:
        raise AssertionError(error)


class Served:
    """A connection whose handler answers at once; to `/stream`, with a stream."""

    def __init__(self) -> None:
        self.connections = Connections(self.handle, error_response, lambda: None)
        self.requests: list[str] = []

    def handle(self, request: HttpRequest, connection: Connection) -> Answer:
        self.requests.append(request.path)
        if request.path == "/stream":
            connection.answer_with(Stream())
            return None
        if request.path == "/fails":
            raise ZeroDivisionError
        if request.path == "/wrong":
            raise HttpError(404, "there is none")
        return Response(200, request.path.encode())

    async def connect(self) -> tuple[socket.socket, Connection]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self.connections), theirs)
        (connection,) = self.connections.all
        return ours, connection


def run(test: Callable[[Served], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(Served()), 30)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


async def read_until(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += await asyncio.get_running_loop().sock_recv(client, 1 << 20)
    return data


def body(data: bytes) -> bytes:
    """Of a chunked response."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    found = b""
    while rest != b"0\r\n\r\n":
        size, _, rest = rest.partition(b"\r\n")
        found, rest = found + rest[: int(size, 16)], rest[int(size, 16) :].removeprefix(b"\r\n")
    return found


def test_an_answer_that_is_there_needs_no_other_turn() -> None:
    async def test(served: Served) -> None:
        client, connection = await served.connect()
        connection.receive(GET % b"one")
        assert not connection.busy and client.recv(1 << 16).endswith(b"\r\n\r\n/one")
        client.close()

    run(test)


def test_a_turn_that_begins_too_late_takes_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the kernel gives the processor to others in between."""

    async def test(served: Served) -> None:
        client, connection = await served.connect()
        seconds = count(time.monotonic())
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: next(seconds))
            connection.receive(GET % b"one")
        assert client.recv(1 << 16).endswith(b"/one")
        client.close()

    run(test)


@pytest.mark.parametrize(("path", "status"), [(b"fails", b"500"), (b"wrong", b"404")])
def test_a_handler_that_raises_is_answered_for(path: bytes, status: bytes) -> None:
    async def test(served: Served) -> None:
        client, connection = await served.connect()
        connection.receive(GET % path + GET % b"next")
        data = await read_until(client, b"/next")
        assert data.startswith(b"HTTP/1.1 %b " % status)
        client.close()

    run(test)


def test_requests_in_one_piece_are_answered_in_turns() -> None:
    """One at once; between the others, everything else has its turn."""

    async def test(served: Served) -> None:
        client, connection = await served.connect()
        names = [b"%d" % index for index in range(50)]
        connection.receive(b"".join(GET % name for name in names))
        assert served.requests == ["/0"]
        data = await read_until(client, b"/49")
        assert data.count(b"HTTP/1.1 200") == 50
        assert served.requests == [f"/{name.decode()}" for name in names]
        client.close()

    run(test)


def test_a_client_that_asks_for_its_body_hears_of_it_after_the_answer_before() -> None:
    async def test(served: Served) -> None:
        client, connection = await served.connect()
        asks = b"POST /two HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        connection.receive(GET % b"one" + asks)
        data = await read_until(client, b"100 Continue\r\n\r\n")
        assert data.index(b"/one") < data.index(b"100 Continue")
        connection.receive(b"{}")
        assert (await read_until(client, b"/two")).startswith(b"HTTP/1.1 200")
        client.close()

    run(test)


@given(
    groups=st.lists(st.lists(st.binary(min_size=1, max_size=40), max_size=5), max_size=5),
    first=st.binary(min_size=1, max_size=9),
    last=st.lists(st.binary(min_size=1, max_size=9), max_size=3),
    ends_within=st.booleans(),
)
def test_joined_pieces_are_the_same_bytes(
    groups: list[list[bytes]], first: bytes, last: list[bytes], ends_within: bool
) -> None:
    """A group leaves in one write at its end, the stream's end with the group that it is in."""

    async def test(served: Served) -> None:
        client, connection = await served.connect()
        connection.receive(GET % b"stream")
        written: list[bytes] = []
        connection._write = written.append  # type: ignore[method-assign]
        write = connection.begin_stream(first)
        assert len(written) == 1
        for group in groups:
            before = len(written)
            with served.connections.writes.joined():
                for piece in group:
                    write(piece)
                assert len(written) == before
            assert len(written) - before == bool(group)
        before = len(written)
        if ends_within:
            with served.connections.writes.joined():
                write(b"more")
                connection.end_stream(*last)
            assert len(written) - before == 1
        else:
            write(b"more")
            connection.end_stream(*last)
        assert not connection.busy
        assert body(b"".join(written)) == b"".join((first, *map(b"".join, groups), b"more", *last))
        client.close()

    run(test)


def test_pieces_of_a_client_that_has_left_are_dropped() -> None:
    async def test(served: Served) -> None:
        client, connection = await served.connect()
        connection.receive(GET % b"stream")
        write = connection.begin_stream(b"a")
        written: list[bytes] = []
        connection._stream._write = written.append
        with served.connections.writes.joined():
            write(b"b")
            connection.connection_lost(None)
        assert not written
        client.close()

    run(test)
