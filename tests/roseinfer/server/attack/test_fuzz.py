"""Bodies and bytes that are valid, almost valid, or nothing of the kind."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.roseinfer.server.attack.conftest import SECONDS, environment_number
from tests.roseinfer.server.http.conformance import CASES, LAST, exchange, read
from tests.roseinfer.server.openai.test_requests import (
    CHAT,
    COMPLETION,
    PROFILE,
    change,
    check_error,
    schema_check,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]


Fuzz = Callable[[Callable[[st.DataObject], None]], None]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT), ("/start_profile", PROFILE)],
)
def test_mutations(serving: Any, fuzz: Fuzz, path: str, body: dict[str, Any]) -> None:
    """JSON with random changes: done, or refused with OpenAI's error."""
    before = serving.complete([1, 2, 3], max_tokens=4, ignore_eos=True).json["choices"]

    def check(draw: st.DataObject) -> None:
        reply = serving.request(path, change(draw, body))
        assert reply.status in (200, 400, 403, 404)
        if reply.status != 200:
            assert check_error(reply, reply.status)["type"] in ("invalid_request_error", "not_found_error")

    fuzz(check)
    assert serving.becomes_idle()
    assert serving.complete([1, 2, 3], max_tokens=4, ignore_eos=True).json["choices"] == before


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_schemas(serving: Any, chatting: Any, fuzz: Fuzz, path: str) -> None:
    """Requests made from /openapi.json by schemathesis, valid and broken."""
    server = chatting if "chat" in path else serving
    earlier = len(server.faults)  # floods by other tests of the server leave it without descriptors
    fuzz(schema_check(server, path))
    assert server.becomes_idle()
    assert not server.faults[earlier:]


#: What mutations put in: ends of lines, framing, controls, other requests.
PIECES = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b"\0", b":", b";", b",", b'"', b"0", b"f" * 17, b"-",
    b"\xff",
    b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n",
    b"expect: 100-continue\r\n",
    b"0\r\n\r\n", b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1", b"a" * 70_000,
    b"x: y\r\n" * 200,
    b"upgrade: h2c\r\nconnection: upgrade\r\n",
)  # fmt: skip


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Put a few pieces in, take some out, double or exchange them."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((0, 0, 1, 2, 8, 40)))
        middle = chance.choice((chance.choice(PIECES), b"", data[start:end] * 2, chance.randbytes(2)))
        data = data[:start] + middle + data[end:]
    return data


def test_forms(serving: Any, tried: Callable[[int], None]) -> None:
    """HTTP/1.1 with random changes: answered, refused or awaited, and others are answered."""
    chance, end, count = random.Random(0), time.monotonic() + environment_number(SECONDS), 0
    while time.monotonic() < end:
        data = mutated(chance.choice(CASES).sent, chance) + LAST
        answer, _ = exchange(serving.port, [data], patience=0.05)
        statuses = read(answer, hangs=False).statuses
        assert not {500, 502, 503} & {*statuses}, data
        count += 1
        if count % 50 == 0:
            assert serving.request("/health").status == 200
    tried(count)
    assert serving.becomes_idle()
