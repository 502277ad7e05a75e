"""Clients that write and read in unusual ways, that send no more, and that leave; forms of HTTP/1.1."""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import socket
import time
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.http.buffers import Account, Budget
from roseinfer.server.http.parser import HttpRequest, RequestParser
from tests.roseinfer.server.clients import answer, connect, post, read_all, reset_on_close, wait_for
from tests.roseinfer.server.http.conformance import CASES, CHUNKED_POST, Answers, Case, judge, violation

BODY = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True, "temperature": 0}


def test_requests_that_do_not_wait_for_answers(serving: Any) -> None:
    """They are answered in order, one after the other."""
    bodies = [BODY | {"prompt": [index + 1] * 4, "stream": index % 2 == 1} for index in range(40)]
    last = post(BODY | {"prompt": [99]}, "connection: close")
    with connect(serving, b"".join(map(post, bodies)) + last) as client:
        answers = read_all(client).split(b"HTTP/1.1 ")[1:]
    assert len(answers) == 41 and all(answer.startswith(b"200 OK") for answer in answers)
    kinds = [b"text/event-stream" in answer for answer in answers]
    assert kinds == [index % 2 == 1 for index in range(40)] + [False]


def test_a_body_is_asked_for_when_its_turn_comes(serving: Any) -> None:
    """Not within the stream that is being sent."""
    asking = post(BODY, "expect: 100-continue", "connection: close")
    head, body = asking.split(b"\r\n\r\n")
    with connect(serving, post(BODY | {"stream": True}) * 2 + head + b"\r\n\r\n") as client:
        before = b""
        while b"100 Continue" not in before:
            before += (more := client.recv(4096))
            assert more
        client.sendall(body)
        after = read_all(client)
    streams = before.removesuffix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert streams.count(b"HTTP/1.1 200 OK") == 2 and streams.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert after.startswith(b"HTTP/1.1 200 OK") and b"HTTP" not in after[8:]


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAA")


def test_an_offer_of_another_protocol_is_declined(serving: Any) -> None:
    """Java's client makes one. The request is answered, its body included, and the connection is kept."""
    head, body = post(BODY, *UPGRADE, "expect: 100-continue").split(b"\r\n\r\n")
    last = post(BODY, "connection: close")
    with connect(serving, head + b"\r\n\r\n") as client:
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body + post(BODY, *UPGRADE) + last)
        answers = read_all(client).split(b"HTTP/1.1 ")[1:]
    assert [answer[:6] for answer in answers] == [b"200 OK"] * 3


def test_old_http(serving: Any) -> None:
    """HTTP/1.0 knows no chunks: the stream ends with the connection."""
    with connect(serving, post(BODY | {"stream": True}, version="1.0")) as client:
        head, _, events = read_all(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert events.endswith(b"data: [DONE]\n\n") and events.startswith(b"data: {")


def test_old_http_learns_that_a_connection_stays_open(serving: Any) -> None:
    """Without that, clients of HTTP/1.0 such as `ab -k` read until it closes, a minute later."""
    with connect(serving, b"GET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n") as client:
        assert b"\r\nconnection: keep-alive\r\n" in client.recv(1 << 16)


def test_what_is_no_http(serving: Any) -> None:
    for sent, status in (
        (b"hello there\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nhost: " + b"a" * 70_000, b"431"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
    ):
        with connect(serving, sent) as client:
            answer = read_all(client)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_a_client_that_reads_late_gets_everything(serving: Any) -> None:
    """Other connections do not wait for it."""
    body = {"prompt": [7] * 3, "max_tokens": 200, "n": 8, "ignore_eos": True, "return_token_ids": True}
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(60)
        client.connect(("127.0.0.1", serving.port))
        client.sendall(post(body | {"stream": True}, "connection: close"))
        assert client.recv(1, socket.MSG_PEEK)  # its answer has begun
        assert serving.complete([1, 2], max_tokens=2).status == 200
        assert serving.becomes_idle()
        answer = read_all(client)
    events = [part for part in answer.split(b"data: ")[1:] if not part.startswith(b"[DONE]")]
    chunks = [json.loads(part.partition(b"\n\n")[0]) for part in events]
    tokens = dict.fromkeys(range(8), 0)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        tokens[choice["index"]] += len(choice["token_ids"])
    assert set(tokens.values()) == {200}


def test_half_a_request_delays_no_other(serving: Any) -> None:
    halves = [connect(serving, post(BODY)[:-5]) for _ in range(50)]
    assert serving.complete([1, 2], max_tokens=2).status == 200
    for half in halves:
        half.close()
    assert serving.becomes_idle()


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


@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_every_form(serving: Any, byte_by_byte: bool) -> None:
    """In one piece, and in pieces of one byte."""
    cases = [case for case in CASES if not byte_by_byte or len(case.sent) < 1000]
    faults = {case.name: violation(serving.port, case, byte_by_byte=byte_by_byte) for case in cases}
    assert not {name: fault for name, fault in faults.items() if fault}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name[:30])
def test_the_list_can_find_something(case: Case) -> None:
    """Each case finds fault with a server that answers everything alike."""
    answers = [Answers([200] * (case.answers + 4)), Answers([200], hangs=True), Answers([500, 500])]
    assert all(judge(case, each) for each in answers)


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
        parsed.append([(each.method, each.path, bytes(each.body), each.keep_alive) for each in requests_out])
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
