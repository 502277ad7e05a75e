"""Servers that send the halves of a character in two chunks, as bytes, as JSON's escapes or as nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fairness.asking import read_reply
from harness.loadgen.live_answers import read_answer
from harness.loadgen.load_plan import LoadPlan, RawResponse, Target, WireRequest
from harness.loadgen.run_load import run_load
from harness.loadgen.sse import read_json
from harness.records.request_record import read_request
from harness.records.stream import read_error

#: The text of two tokens that share a character, as JSON, and what is read of both.
HALVES = {
    "bytes": (b"\xf0\x9f", b"\x98\x80", "\ufffd\ufffd\ufffd"),
    "escapes": (rb"\ud83d", rb"\ude00", "\ufffd\ufffd"),
    "replaced": ("\ufffd".encode(), rb"\ufffd", "\ufffd\ufffd"),
    "empty": (b"", rb"\ud83d\ude00", "😀"),
}
GAP_S = 0.02


def events(kind: str, counted: str) -> list[bytes]:
    """The answer `a`, an emoji of two tokens, `b`: an event for each token, then the usage and the end."""
    found = []
    for i, text in enumerate((b"a", *HALVES[kind][:2], b"b"), start=1):
        ids = b',"token_ids":[%d]' % i if counted == "token_ids" else b""
        usage = b',"usage":{"completion_tokens":%d}' % i if counted == "continuous_usage" else b""
        end = b',"finish_reason":"length"' if i == 4 else b""
        found.append(b'data: {"choices":[{"text":"%b"%b%b}]%b}\n\n' % (text, ids, end, usage))
    total = b'data: {"choices":[],"usage":{"completion_tokens":4}}\n\n'
    return [*found, total, b"data: [DONE]\n\n"]


COUNTED = [
    (kind, counted)
    for kind in HALVES
    for counted in ("token_ids", "continuous_usage", "final_usage")
    if (kind, counted) != ("empty", "final_usage")  # nothing says that the chunk without text is a token
]


@pytest.mark.parametrize(("kind", "counted"), COUNTED)
def test_each_half_is_a_token_at_its_own_time(kind: str, counted: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    segments = [(float(t), data) for t, data in enumerate([head, *events(kind, counted)])]
    raw = RawResponse(0, 0.0, 0.0, 9.0, segments)
    record = read_request(raw, 4, tokens_of=len)
    assert (record.error, record.token_source) == (None, counted)
    assert record.chunks == [(1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1)]
    assert read_answer(raw).text == f"a{HALVES[kind][2]}b"
    reply = read_reply(raw, 4)
    assert (reply.error, reply.count, reply.text) == (None, 4, f"a{HALVES[kind][2]}b")
    assert reply.tokens == ([1, 2, 3, 4] if counted == "token_ids" else None)


class Server(BaseHTTPRequestHandler):
    """Sends an event every GAP_S, and notes when."""

    server: Any

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in self.server.events:
            time.sleep(GAP_S)
            self.server.sent.append(time.monotonic())
            self.wfile.write(event)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(integration: None) -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Server)
    server.sent = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", list(HALVES))
def test_over_a_socket_they_are_counted_as_they_were_sent(server: Any, kind: str) -> None:
    server.events = events(kind, "token_ids")
    target = Target("127.0.0.1", server.server_port, "/v1/completions")
    [raw] = run_load(LoadPlan(target, [WireRequest(0, 0.0, b"{}")])).responses
    record = read_request(raw, 4)
    assert (record.error, record.completion_tokens) == (None, 4)
    first, last = record.chunks[0][0], record.chunks[-1][0]
    assert first >= server.sent[0] - 1e-3 and last >= server.sent[3] - 1e-3
    assert sum(tokens for _, tokens in record.chunks) == 4


@given(
    st.text(st.characters(codec="utf-8")), st.sampled_from([rb"\ud83d", rb"\uDE00", b"\xf0\x9f", b"\xe2\x82"])
)
def test_what_is_beside_half_a_character_is_read_as_it_is(text: str, half: bytes) -> None:
    whole = json.dumps(text).encode()[:-1]
    decoder = msgspec.json.Decoder(str)
    assert read_json(decoder, whole + half + b'"') == text + "\ufffd"
    assert read_json(decoder, b'"' + half + whole[1:] + b'"') == "\ufffd" + text


@pytest.mark.parametrize("data", [b"\xf0\x9f", rb'{"\ud83d', b"[DONE]"])
def test_what_is_no_json_is_an_error_still(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_json(msgspec.json.Decoder(), data)


def test_an_error_with_half_a_character_is_read() -> None:
    assert read_error(b'{"error": {"message": "no \xf0\x9f"}}') == "no \ufffd"
