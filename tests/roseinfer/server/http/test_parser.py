"""HTTP/1.1 in unusual and broken forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.http.buffers import Account, Budget
from roseinfer.server.http.parser import HttpRequest, RequestParser
from tests.roseinfer.server.clients import answer, connect
from tests.roseinfer.server.http.cases import CASES, CHUNKED, Case, post
from tests.roseinfer.server.http.conformance import Answers, judge, violation


@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_every_form(serving: Any, byte_by_byte: bool) -> None:
    """In one piece, and in pieces of one byte."""
    cases = [case for case in CASES if not byte_by_byte or len(case.sent) < 1000]
    faults = {case.name: violation(serving.port, case, byte_by_byte=byte_by_byte) for case in cases}
    assert not {name: fault for name, fault in faults.items() if fault}
    assert not [line for line in serving.log if "Traceback" in line]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name[:30])
def test_the_list_can_find_something(case: Case) -> None:
    """Each case finds fault with a server that answers everything alike."""
    answers = [Answers([200] * (case.answers + 4)), Answers([200], hangs=True), Answers([500, 500])]
    assert all(judge(case, each) for each in answers)


#: The head of a chunked POST.
CHUNKED_POST = post(CHUNKED)
UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAA")


@given(cuts=st.lists(st.integers(0, 1000), max_size=6), chunked=st.booleans())
def test_an_offer_of_another_protocol_changes_nothing(cuts: list[int], chunked: bool) -> None:
    body = b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n" if chunked else b"abcd"
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 4"
    requests = [
        b"POST /a?b HTTP/1.1\r\nHost: localhost\r\n" + offer + length + b"\r\n\r\n" + body
        + b"GET /c HTTP/1.1\r\nHost: localhost\r\n" + offer + b"\r\n"
        + b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n" + offer + b"\r\n"
        + b"POST /e HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1\r\n\r\nf"
        for offer in (b"", "".join(f"{line}\r\n" for line in UPGRADE).encode())
    ]  # fmt: skip
    parsed = []
    for data in requests:
        requests_out: list[HttpRequest] = []
        account = Account(Budget(1 << 20))
        incoming = RequestParser(requests_out.append, lambda: None, lambda request: None, account)
        ends = sorted(cut % len(data) for cut in cuts)
        for start, end in zip([0, *ends], [*ends, len(data)], strict=True):
            incoming.feed(data[start:end])
        assert not incoming.receiving
        parsed.append(
            [
                (request.method, request.path, bytes(request.body), request.keep_alive)
                for request in requests_out
            ]
        )
    assert parsed[0] == parsed[1] and len(parsed[0]) == 4


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % i for i in range(129)) + b"\r\n",
        b"GET /" + b"a" * (80 << 10),
        CHUNKED_POST + b"1\r\na\r\n" * 65536,
        CHUNKED_POST + b"1;" + b"a" * (24 << 10),
    ],
)
def test_heads_and_framing_have_an_end(serving: Any, sent: bytes) -> None:
    with connect(serving) as client:
        assert answer(client, sent).startswith(b"HTTP/1.1 431 ")
