"""Answers at once and streams: what is written, in how many pieces, and what ends if nothing moves."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.http.connection import (
    DRAIN_TIMEOUT,
    IDLE_TIMEOUT,
    LINGER_TIMEOUT,
    RECEIVE_TIMEOUT,
    STALL_TIMEOUT,
)
from roseinfer.server.http.parser import MAX_BODY_BYTES
from tests.roseinfer.server.http.in_process import Server, in_process, receive, until

in_asyncio = partial(in_process, loop=asyncio.new_event_loop)
GET = b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n"


def body(data: bytes) -> bytes:
    """Return the content of a chunked response."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    content = b""
    while rest != b"0\r\n\r\n":
        size, _, rest = rest.partition(b"\r\n")
        content, rest = content + rest[: int(size, 16)], rest[int(size, 16) :].removeprefix(b"\r\n")
    return content


@in_process
async def test_an_answer_that_is_there_needs_no_other_turn(served: Server) -> None:
    client, connection = await served.connect()
    connection.receive(GET % b"one")
    assert not connection.busy and client.recv(1 << 16).endswith(b"\r\n\r\n/one")


@in_process
async def test_a_turn_that_begins_too_late_takes_a_piece(served, monkeypatch):
    """This happens when the kernel gives the processor to others in between."""
    client, connection = await served.connect()
    seconds = count(time.monotonic())
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(seconds))
        connection.receive(GET % b"one")
    assert client.recv(1 << 16).endswith(b"/one")


@pytest.mark.parametrize(("path", "status"), [(b"fails", b"500"), (b"wrong", b"404")])
@in_process
async def test_a_handler_that_raises_is_answered_for(served: Server, path: bytes, status: bytes) -> None:
    client, connection = await served.connect()
    connection.receive(GET % path + GET % b"next")
    data = await receive(client, b"/next")
    assert data.startswith(b"HTTP/1.1 %b " % status)


@in_process
async def test_requests_in_one_piece_are_answered_in_turns(served: Server) -> None:
    """One at once; between the others, everything else has its turn."""
    client, connection = await served.connect()
    names = [b"n%d" % index for index in range(50)]
    connection.receive(b"".join(GET % name for name in names))
    assert served.requests == ["/n0"]
    data = await receive(client, b"/n49")
    assert data.count(b"HTTP/1.1 200") == 50
    assert served.requests == [f"/{name.decode()}" for name in names]


@in_process
async def test_a_client_that_asks_for_its_body_hears_of_it_after_the_answer_before(served: Server) -> None:
    client, connection = await served.connect()
    asks = b"POST /two HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    connection.receive(GET % b"one" + asks)
    data = await receive(client, b"100 Continue\r\n\r\n")
    assert data.index(b"/one") < data.index(b"100 Continue")
    connection.receive(b"{}")
    assert (await receive(client, b"/two")).startswith(b"HTTP/1.1 200")


@given(
    groups=st.lists(st.lists(st.binary(min_size=1, max_size=40), max_size=5), max_size=5),
    first=st.binary(min_size=1, max_size=9),
    last=st.lists(st.binary(min_size=1, max_size=9), max_size=3),
    ends_within=st.booleans(),
)
@in_process
async def test_joined_pieces_are_the_same_bytes(served, groups, first, last, ends_within):
    """A group leaves in one write at its end, the stream's end with the group that it is in."""
    _, connection = await served.connect()
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


@in_process
async def test_pieces_of_a_client_that_has_left_are_dropped(served: Server) -> None:
    _, connection = await served.connect()
    connection.receive(GET % b"stream")
    write = connection.begin_stream(b"a")
    written: list[bytes] = []
    connection._stream._write = written.append
    with served.connections.writes.joined():
        write(b"b")
        connection.connection_lost(None)
    assert not written


#: What may pass between two lines of a test, s.
SOON = 20.0

ASK = b"POST /2 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize("sent", [ASK[:20], ASK[:-8], ASK[:-1]])
@in_asyncio
async def test_a_request_that_does_not_come_in_is_answered_with_408(served: Server, sent: bytes) -> None:
    client, connection = await served.connect()
    client.send(sent)
    await until(lambda: connection.parser.receiving)
    served.later(RECEIVE_TIMEOUT - SOON)
    assert not connection.lingering
    served.later(RECEIVE_TIMEOUT + 1)
    client.send(b"late")
    head, _, body = (await receive(client)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"connection: close" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    served.later(LINGER_TIMEOUT + 1)  # it never closes its side
    await until(lambda: not served.connections.all)
    assert not served.requests


@in_asyncio
async def test_a_byte_now_and_then_does_not_keep_a_request_open(served: Server) -> None:
    client, connection = await served.connect()
    client.send(ASK[:20])
    await until(lambda: connection.parser.receiving)
    for byte in ASK[20:30]:
        client.send(bytes([byte]))
        await asyncio.sleep(0.001)
    served.later(RECEIVE_TIMEOUT + 1)
    assert (await receive(client)).startswith(b"HTTP/1.1 408 ")


@in_asyncio
async def test_an_unused_connection_is_closed_and_a_used_one_counts_anew(served: Server) -> None:
    client, connection = await served.connect()
    served.later(IDLE_TIMEOUT - SOON)
    client.send(ASK)
    await until(lambda: served.requests and not connection.busy)
    assert b"200 OK" in await asyncio.get_running_loop().sock_recv(client, 4096)
    served.later(IDLE_TIMEOUT - SOON)
    assert served.connections.all
    served.later(IDLE_TIMEOUT + 1)
    assert await receive(client) == b""


@in_asyncio
async def test_who_does_not_read_a_stream_is_dropped(served: Server) -> None:
    client, _ = await served.connect()
    client.send(GET % b"endless")
    await until(lambda: served.stream)
    served.later(STALL_TIMEOUT - SOON)
    assert served.connections.all
    served.later(STALL_TIMEOUT + 1)
    await until(lambda: not served.connections.all)
    assert served.stream is not None and served.stream.closed


@pytest.mark.parametrize("streams", [False, True])
@in_asyncio
async def test_who_reads_slowly_is_not_dropped(served: Server, streams: bool) -> None:
    """Both while a stream waits for it and after a whole answer that is too large for the buffers."""
    client, connection = await served.connect()
    client.send(GET % (b"endless" if streams else b"%d" % (8 << 20)))
    await until(lambda: served.stream if streams else served.requests and not connection.busy)
    served.later(0)
    for turn in range(1, 5):
        assert await asyncio.get_running_loop().sock_recv(client, 4096)
        served.later(turn * (STALL_TIMEOUT - SOON))
        assert served.connections.all
    served.later(5 * STALL_TIMEOUT)
    await until(lambda: not served.connections.all)


@in_asyncio
async def test_who_reads_a_little_now_and_then_is_dropped_in_the_end(served: Server) -> None:
    """Each read moves something, but what waits has a time limit as a whole."""
    client, connection = await served.connect()
    client.send(GET % b"%d" % (8 << 20))
    await until(lambda: served.requests and not connection.busy)
    served.later(0)
    turns = 0
    while not connection.transport.is_closing():
        turns += 1
        assert await asyncio.get_running_loop().sock_recv(client, 1 << 17)
        await asyncio.sleep(0)
        served.later(turns * (STALL_TIMEOUT - SOON))
    assert 0 < turns * (STALL_TIMEOUT - SOON) - DRAIN_TIMEOUT < STALL_TIMEOUT


@in_asyncio
async def test_trailers_have_an_end(served: Server) -> None:
    """They come after a chunked body, whose limit does not count them."""
    client, connection = await served.connect()
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
    trailer = b"a: " + b"b" * 65536 + b"\r\n"
    reading = asyncio.ensure_future(receive(client))
    for _ in range(2 * MAX_BODY_BYTES // len(trailer)):
        await loop.sock_sendall(client, trailer)
        if connection.lingering:
            break
    served.later(LINGER_TIMEOUT + 1)
    assert (await reading).startswith(b"HTTP/1.1 431 ")
