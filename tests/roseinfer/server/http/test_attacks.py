"""Attacks on the memory and time of a server: large heads and bodies, and the process that reads these.

`test_budgets.py` and `test_time_limits.py` have clients that do not read, or send without end."""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import Any

import psutil
import pytest

from tests.roseinfer.server.clients import connect, wait_for

MIB = 1 << 20
#: Bytes that a socket takes at once, and seconds for what takes much less.
PIECE, TIMEOUT = 1 << 12, 20
#: Fields of a JSON object.
MANY = b",".join(b'"%d":0' % field for field in range(300_000))
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


def rss(server: Any) -> int:
    """Return the bytes of memory that the one front end has."""
    return psutil.Process(server.process.pid).memory_info().rss


def answer(client: socket.socket, sent: bytes) -> bytes:
    """Return the beginning of the answer to `sent`, which the server need not take to the end."""
    unsent = memoryview(sent)
    while unsent and not select.select([client], [], [], 0)[0]:
        readable, writable, _ = select.select([client], [client], [], TIMEOUT)
        assert readable or writable
        if writable:
            unsent = unsent[client.send(unsent[:PIECE]) :]
    return client.recv(100)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % i for i in range(129)) + b"\r\n",
        b"GET /" + b"a" * (80 << 10),
        CHUNKED + b"1\r\na\r\n" * 65536,
        CHUNKED + b"1;" + b"a" * (24 << 10),
    ],
)
def test_heads_and_framing_have_an_end(serving: Any, sent: bytes) -> None:
    with connect(serving) as client:
        assert answer(client, sent).startswith(b"HTTP/1.1 431 ")


def test_a_full_server_says_when_to_ask_again(serve: Any, fake: Any) -> None:
    """It still answers small requests, and has room again when the others have left."""
    server = serve("--frontend-processes", "1", "--max-buffered-mib", "8", **fake)
    half = POST + b"content-length: %d\r\n\r\n" % (6 * MIB) + b" " * (5 * MIB)
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


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"prompt": [' + b"[]," * (5 * MIB) + b"[]]}"),
        ("/v1/completions", b'{"prompt": [1], "logit_bias": {' + MANY + b"}}"),
        ("/v1/chat/completions", b'{"messages": [' + b'{"role":"u"},' * MIB + b'{"role":"u"}]}'),
    ],
)
def test_large_bodies_do_not_keep_others_waiting(serving: Any, path: str, body: bytes) -> None:
    """They are decoded elsewhere; the process is started with the first of them."""
    replies: list[Any] = []
    began = time.monotonic()
    sending = threading.Thread(target=lambda: replies.append(serving.request(path, body)))
    sending.start()
    waited = 0.0
    while sending.is_alive():
        start = time.monotonic()
        assert serving.request("/health").status == 200
        waited = max(waited, time.monotonic() - start)
        sending.join(0.01)
    assert replies[0].status == 400
    assert waited < max(0.5, (time.monotonic() - began) / 2)  # as long as it takes where it is decoded here


def test_what_is_made_of_a_body_has_a_bound(serving: Any) -> None:
    """Ten million lists would take 600 MiB; a character beyond 16 bits makes a text four times as long."""
    lists = b'{"prompt": [' + b"[]," * (10 * MIB) + b"[]]}"
    text = '{"prompt": "😀'.encode() + b"a" * (30 * MIB) + b'"}'
    for body in (lists, text):
        reply = serving.request("/v1/completions", body)
        assert reply.status == 400 and "memory" in reply.json["error"]["message"]
    assert serving.complete([1], max_tokens=1, user="a" * MIB).status == 200


def test_bodies_that_wait_to_be_read_leave_with_their_clients(serving: Any) -> None:
    body = b'{"prompt": [' + b"[]," * (10 * MIB) + b"[]]}"
    request = POST + b"content-length: %d\r\n\r\n" % len(body) + body
    before = rss(serving)
    for client in [connect(serving, request) for _ in range(6)]:
        client.close()
    assert wait_for(lambda: rss(serving) - before < 64 * MIB)


def test_a_large_body_is_answered_like_a_small_one(serving: Any) -> None:
    """Also when the process that reads them has been killed before."""
    small = serving.complete([1, 2, 3], max_tokens=4, ignore_eos=True).json
    for _ in range(2):
        padding = " " * MIB
        large = serving.complete([1, 2, 3], max_tokens=4, ignore_eos=True, user=padding).json
        assert large["choices"] == small["choices"] and large["usage"] == small["usage"]
        (reader,) = (
            child
            for child in psutil.Process(serving.process.pid).children()
            if any("large_bodies" in word for word in child.cmdline())
        )
        reader.kill()
        serving.complete([1], user=padding)  # 503: it notices, and starts another for the next
