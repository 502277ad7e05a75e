"""Clients that send no more, that leave, and that find no descriptor left; how answers are named."""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import socket
import struct
import time
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.integration

POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def connect(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def answer_to(server: Any, sent: bytes) -> bytes:
    """All that comes until the server closes; the client sends no more."""
    with connect(server) as client, client.makefile("rb") as stream:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return stream.read()


@pytest.mark.parametrize("stream", [False, True])
def test_date_and_request_id(serving: Any, stream: bool) -> None:
    def headers(sent_headers: dict[str, str]) -> dict[str, str]:
        body = {"prompt": [1, 2], "max_tokens": 2, "stream": stream}
        reply = serving.request("/v1/completions", body, headers=sent_headers)
        return dict(reply.headers)

    date = email.utils.parsedate_to_datetime(headers({})["date"])
    assert abs(date.timestamp() - time.time()) < 100
    assert headers({"x-request-id": "my/id-1"})["x-request-id"] == "my/id-1"
    new_ids = [
        headers(sent_headers)["x-request-id"]
        for sent_headers in ({}, {"x-request-id": "a b"}, {"x-request-id": "a" * 200})
    ]
    assert len(set(new_ids)) == 3 and all(re.fullmatch("[0-9a-f]{32}", id) for id in new_ids)


LONG = json.dumps({"prompt": [1, 2], "max_tokens": 900, "ignore_eos": True, "n": 16}).encode()
ASK_LONG = POST + b"content-length: %d\r\n\r\n" % len(LONG) + LONG


@pytest.mark.parametrize("stream", [False, True])
def test_who_sends_no_more_gets_every_answer(serving: Any, stream: bool) -> None:
    body = json.dumps({"prompt": [1, 2], "max_tokens": 60, "ignore_eos": True, "stream": stream}).encode()
    request = POST + b"content-length: %d\r\n\r\n" % len(body) + body
    answers = answer_to(serving, request * 2 + b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    finals = re.findall(rb"HTTP/1.1 (?!100)(\d+) ", answers)
    assert finals == [b"200"] * 3
    assert answers.count(b'"finish_reason":"length"') == 2


def counted(server: Any, name: str) -> float:
    """Return the value of one of the server's counters."""
    page = server.request("/metrics").body.decode()
    return float(re.findall(rf"^roseinfer_{name}_total (\S+)", page, re.MULTILINE)[0])


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("pipelined", [1, 20, 400])
def test_who_has_left_is_noticed(serving: Any, pipelined: int, reset: bool) -> None:
    """Behind whole answers, of which there may be more than are read."""

    before = counted(serving, "requests")
    with connect(serving) as client:
        client.sendall(ASK_LONG * pipelined)
        while not serving.load()["inflight"]:
            pass
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert serving.becomes_idle()
    assert counted(serving, "requests") - before < 16, "not even the first request was answered"


def test_who_has_left_before_the_request_was_parsed_is_noticed(serving: Any) -> None:
    """Large bodies of others keep the front end busy meanwhile."""

    large = json.dumps({"prompt": [[1, 2]] * 200_000, "max_tokens": 1}).encode()
    before = counted(serving, "generation_tokens")
    with contextlib.ExitStack() as others:
        for _ in range(4):
            other = others.enter_context(connect(serving))
            other.sendall(POST + b"content-length: %d\r\n\r\n" % len(large) + large)
        for _ in range(20):
            with connect(serving) as client:
                client.sendall(ASK_LONG)
    assert serving.becomes_idle()
    assert counted(serving, "generation_tokens") - before < 900, "no request was computed to its end"


def test_a_front_end_without_descriptors_says_so(keyed: Any) -> None:
    """And takes connections again when it has some."""
    server = keyed
    (other,) = server.front_ends
    process = psutil.Process(other.pid)
    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), hard))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(6)]
        end = time.monotonic() + 60
        while not any("no descriptor left" in line for line in server.log) and time.monotonic() < end:
            time.sleep(0.01)
        for client in clients:
            with contextlib.suppress(OSError):
                client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
    assert [line for line in server.log if "no descriptor left" in line]
    assert [server.request("/health").status for _ in range(4)] == [200] * 4
    assert not [line for line in server.log if "Traceback" in line]
