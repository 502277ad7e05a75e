"""Clients that send no more, that leave, and that find no descriptor left; how answers are named."""

from __future__ import annotations

import contextlib
import email.utils
import re
import socket
import time
from typing import Any

import psutil
import pytest

from tests.roseinfer.server.clients import connect, post, read_all, reset_on_close, wait_for

pytestmark = pytest.mark.integration


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


ASK_LONG = post({"prompt": [1, 2], "max_tokens": 900, "ignore_eos": True, "n": 16})


@pytest.mark.parametrize("stream", [False, True])
def test_who_sends_no_more_gets_every_answer(serving: Any, stream: bool) -> None:
    request = post({"prompt": [1, 2], "max_tokens": 60, "ignore_eos": True, "stream": stream})
    last = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with connect(serving, request * 2 + last) as client:
        client.shutdown(socket.SHUT_WR)
        answers = read_all(client)
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
    with connect(serving, ASK_LONG * pipelined) as client:
        assert wait_for(lambda: serving.load()["inflight"])
        if reset:
            reset_on_close(client)
    assert serving.becomes_idle()
    assert counted(serving, "requests") - before < 16, "not even the first request was answered"


def test_who_has_left_before_the_request_was_parsed_is_noticed(serving: Any) -> None:
    """Large bodies of others keep the front end busy meanwhile."""

    large = post({"prompt": [[1, 2]] * 200_000, "max_tokens": 1})
    before = counted(serving, "generation_tokens")
    with contextlib.ExitStack() as others:
        for _ in range(4):
            others.enter_context(connect(serving, large))
        for _ in range(20):
            connect(serving, ASK_LONG).close()
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
        assert wait_for(lambda: any("no descriptor left" in line for line in server.log))
        for client in clients:
            with contextlib.suppress(OSError):
                client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
    assert [server.request("/health").status for _ in range(4)] == [200] * 4
    assert not [line for line in server.log if "Traceback" in line]
