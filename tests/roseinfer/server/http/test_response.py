"""Answers that are there at once, and streams: what is written, and in how many pieces."""

from __future__ import annotations

import asyncio
import socket
import time
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.http.connection import Connection
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.response import Answer, Producer, Response
from tests.roseinfer.server.http.in_process import Server, in_process

GET = b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n"


class Stream(Producer):
    """A stream that the test writes."""

    def close(self) -> None:
        pass

    def fail(self, error: HttpError) -> None:
        raise AssertionError(error)


class Served(Server):
    """A server that answers at once; `/stream`, with a stream."""

    def answer(self, request: HttpRequest, connection: Connection) -> Answer:
        if request.path == "/stream":
            connection.answer_with(Stream())
            return None
        if request.path == "/fails":
            raise ZeroDivisionError
        if request.path == "/wrong":
            raise HttpError(404, "there is none")
        return Response(200, request.path.encode())


async def read_until(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += await asyncio.get_running_loop().sock_recv(client, 1 << 20)
    return data


def body(data: bytes) -> bytes:
    """Return the content of a chunked response."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    content = b""
    while rest != b"0\r\n\r\n":
        size, _, rest = rest.partition(b"\r\n")
        content, rest = content + rest[: int(size, 16)], rest[int(size, 16) :].removeprefix(b"\r\n")
    return content


@in_process(Served)
async def test_an_answer_that_is_there_needs_no_other_turn(served: Served) -> None:
    client, connection = await served.connect()
    connection.receive(GET % b"one")
    assert not connection.busy and client.recv(1 << 16).endswith(b"\r\n\r\n/one")
    client.close()


@in_process(Served)
async def test_a_turn_that_begins_too_late_takes_a_piece(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens when the kernel gives the processor to others in between."""
    client, connection = await served.connect()
    seconds = count(time.monotonic())
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(seconds))
        connection.receive(GET % b"one")
    assert client.recv(1 << 16).endswith(b"/one")
    client.close()


@pytest.mark.parametrize(("path", "status"), [(b"fails", b"500"), (b"wrong", b"404")])
@in_process(Served)
async def test_a_handler_that_raises_is_answered_for(served: Served, path: bytes, status: bytes) -> None:
    client, connection = await served.connect()
    connection.receive(GET % path + GET % b"next")
    data = await read_until(client, b"/next")
    assert data.startswith(b"HTTP/1.1 %b " % status)
    client.close()


@in_process(Served)
async def test_requests_in_one_piece_are_answered_in_turns(served: Served) -> None:
    """One at once; between the others, everything else has its turn."""
    client, connection = await served.connect()
    names = [b"%d" % index for index in range(50)]
    connection.receive(b"".join(GET % name for name in names))
    assert served.requests == ["/0"]
    data = await read_until(client, b"/49")
    assert data.count(b"HTTP/1.1 200") == 50
    assert served.requests == [f"/{name.decode()}" for name in names]
    client.close()


@in_process(Served)
async def test_a_client_that_asks_for_its_body_hears_of_it_after_the_answer_before(served: Served) -> None:
    client, connection = await served.connect()
    asks = b"POST /two HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    connection.receive(GET % b"one" + asks)
    data = await read_until(client, b"100 Continue\r\n\r\n")
    assert data.index(b"/one") < data.index(b"100 Continue")
    connection.receive(b"{}")
    assert (await read_until(client, b"/two")).startswith(b"HTTP/1.1 200")
    client.close()


@given(
    groups=st.lists(st.lists(st.binary(min_size=1, max_size=40), max_size=5), max_size=5),
    first=st.binary(min_size=1, max_size=9),
    last=st.lists(st.binary(min_size=1, max_size=9), max_size=3),
    ends_within=st.booleans(),
)
@in_process(Served)
async def test_joined_pieces_are_the_same_bytes(
    served: Served, groups: list[list[bytes]], first: bytes, last: list[bytes], ends_within: bool
) -> None:
    """A group leaves in one write at its end, the stream's end with the group that it is in."""
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


@in_process(Served)
async def test_pieces_of_a_client_that_has_left_are_dropped(served: Served) -> None:
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
