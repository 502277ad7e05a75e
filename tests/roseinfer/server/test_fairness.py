"""One client's flood: others are answered meanwhile, and it cannot fill the queue."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from roseinfer.server.access import Access, QueueLimits
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.metrics.counters import Counters

LONG = {"prompt": [1, 2, 3], "max_tokens": 80, "ignore_eos": True, "temperature": 0}


def as_client(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@contextlib.contextmanager
def flood(server: Any, key: str, requests: int, n: int, tokens: int = 80) -> Iterator[None]:
    """Open that many requests that wait for their answers, `n` each, of so many tokens."""
    body = json.dumps(LONG | {"n": n, "max_tokens": tokens}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(requests):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            client.sendall(head.encode() + body)
        yield


def waiting(server: Any, key: str) -> int:
    load = server.request("/server_info", headers=as_client(key)).json["load"]
    return int(load["waiting"])


def test_a_stranger_is_answered_within_a_flood(keyed: Any) -> None:
    """40 requests of 128 answers each from one client, and another's single token, through any front end."""
    with flood(keyed, "first-key", 40, 128):
        end = time.monotonic() + 60
        while waiting(keyed, "third-key") < 4_300 and time.monotonic() < end:
            time.sleep(0.01)
        for _ in range(4):
            reply = keyed.complete([7, 8], max_tokens=1, headers=as_client("third-key"))
            assert reply.status == 200 and reply.json["usage"]["completion_tokens"] == 1
            assert waiting(keyed, "third-key") > 3_300


def test_a_client_cannot_fill_the_queue(serve: Any) -> None:
    server = serve(
        "--max-active-requests", "1", "--max-waiting-requests", "400",
        environment={"ROSEINFER_API_KEY": "one\nother\nthird"},
    )  # fmt: skip

    def refused(key: str, n: int) -> Any:
        reply = server.request("/v1/completions", LONG | {"n": n}, headers=as_client(key))
        assert int(reply.headers["retry-after"]) >= 1
        return reply.status, reply.json["error"]["type"]

    with flood(server, "one", 2, 100, tokens=300):  # few of them end while others come
        end = time.monotonic() + 60
        while waiting(server, "one") < 190 and time.monotonic() < end:
            time.sleep(0.01)
        assert refused("one", 128) == (429, "rate_limit_error")
        with flood(server, "other", 1, 128, tokens=300):
            while waiting(server, "one") < 310 and time.monotonic() < end:
                time.sleep(0.01)
            assert refused("other", 128) == (429, "rate_limit_error")
            assert refused("third", 128) == (503, "server_error")
            assert server.complete([1], max_tokens=1, headers=as_client("third")).status == 200


def test_shares_of_the_queue() -> None:
    """Over all front ends; a first request is taken whatever its size; tokens count like answers."""
    first = Counters.create(2)
    second = Counters(first.fd, 2, 1)
    assert first.salt == second.salt and len(first.salt) == 16
    limits = QueueLimits(second, 100, 1000)
    limits.check(1, 128, 5000)
    first.add_waiting(1, 50, 100)
    for answers, tokens, status in ((1, 0, 429), (0, 900, 429), (0, 500, None)):
        with pytest.raises(HttpError) if status else contextlib.nullcontext() as refusal:
            limits.check(1, answers, tokens)
        assert refusal is None or refusal.value.status == status
    second.add_waiting(2, 45, 100)
    limits.check(3, 5, 800)
    with pytest.raises(HttpError) as full:
        limits.check(3, 6)
    assert full.value.status == 503
    first.add_waiting(1, -50, -100)
    limits.check(3, 100, 5000)


def test_who_is_a_client() -> None:
    """Keys where there are several, else addresses; of IPv6, networks."""

    def number(keys: list[str], peer: str, key: str = "a", salt: bytes = b"x") -> int:
        headers = {b"authorization": key.encode() if " " in key else f"Bearer {key}".encode()}
        return Access(keys, (), salt).client(HttpRequest("GET", "/", headers, True, True), peer)

    assert number(["a", "b"], "10.0.0.1") == number(["a", "b"], "10.0.0.2") != number(["a", "b"], "", "b")
    assert len({number(["a", "b"], "", key) for key in ("a", "bearer a", "BEARER  a ")}) == 1
    for keys in ([], ["a"]):
        assert number(keys, "10.0.0.1") == number(keys, "10.0.0.1", "b") != number(keys, "10.0.0.2")
        assert number(keys, "fe80::1%eth0") == number(keys, "fe80::2") != number(keys, "fe80:0:0:1::1")
        assert number(keys, "::ffff:10.0.0.1") != number(keys, "::ffff:10.0.0.2")
    assert number([], "10.0.0.1") != number([], "10.0.0.1", salt=b"y")
    assert 0 <= number([], "::1") < 2**63
