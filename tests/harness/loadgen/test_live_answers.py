"""Sessions that carry the engine's own answers, over real sockets: bodies, thinking, places in flight."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.loadgen.live_answers import (
    LiveAnswer,
    LiveAnswers,
    answer_marker,
    call_marker,
    fill_body,
    fill_text,
    read_answer,
)
from harness.loadgen.load_plan import LoadPlan, RawResponse, Target, WireRequest
from harness.loadgen.pacing import Turns
from harness.loadgen.run_load import run_load

ODD = 'quote " backslash \\ line\n tab\t ünï 😀 \u2028'

RECORDED = '{"path": "a | b"}'


def response(text: str, index: int = 0, pieces: int = 3, chat: bool = False) -> RawResponse:
    """An answer in events, cut anywhere, chunked as HTTP has it."""
    size = max(1, len(text) // pieces)
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    body = b""
    for part in parts:
        choice: dict[str, Any] = {"delta": {"content": part, "role": "assistant"}} if chat else {"text": part}
        data = json.dumps({"choices": [choice]}).encode()
        event = b"data: " + data + b"\n\n"
        body += b"%x\r\n%b\r\n" % (len(event), event)
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
    segments = [(0.0, raw[i : i + 7]) for i in range(0, len(raw), 7)]
    return RawResponse(index, 0.0, 0.0, 1.0, segments)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x01"), min_size=1)


@given(TEXTS, st.booleans())
@example("[DONE]" * 3, False)
def test_an_answer_comes_back_as_it_was_sent(text: str, chat: bool) -> None:
    assert read_answer(response(text, chat=chat)).text == text
    asked = {"prompt": f"before {answer_marker(7)} after {answer_marker(9)}"}
    body = fill_body(msgspec.json.encode(asked), {7: LiveAnswer(text)})
    assert msgspec.json.decode(body) == {"prompt": f"before {text} after "}


def test_of_parts_the_text_comes_back_without_the_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    bodies = [{"content": [thinking]}, {"content": [{"type": "text", "text": "yes"}]}, {"content": " sir"}]
    events = b"".join(b"data: %b\n\n" % json.dumps({"choices": [{"delta": d}]}).encode() for d in bodies)
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(events), events)
    assert read_answer(RawResponse(0, 0.0, 0.0, 1.0, [(0.0, raw)])).text == "yes sir"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_an_event_may_have_its_data_in_several_lines(newline: bytes) -> None:
    lines = json.dumps({"choices": [{"delta": {"content": "yes"}}]}, indent=1).encode().splitlines()
    event = newline.join([b"event: message", *(b"data: " + line for line in lines)]) + 2 * newline
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (2 * len(event), 2 * event)
    assert read_answer(RawResponse(0, 0.0, 0.0, 1.0, [(0.0, raw)])).text == "yesyes"


def test_what_is_no_answer_is_empty() -> None:
    error = b"HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\noops!"
    assert read_answer(RawResponse(0, 0, 0, 1, [(0, error)], error="disconnected")).text == ""
    assert read_answer(RawResponse(0, 0, None, 1, [], error="connect")).text == ""
    assert read_answer(RawResponse(0, 0, 0, 1, [(0, b"garbage")])).text == ""


def test_a_body_is_filled_when_all_its_answers_are_there() -> None:
    later = WireRequest(2, None, f'"{answer_marker(0)!r}"'.encode(), (1,), 0.0, (0, 1))
    live = LiveAnswers([WireRequest(0, None, b""), WireRequest(1, None, b"", (0,), 0.0, ()), later])
    assert live.take(response("a")) == {}
    assert list(live.take(response("b", 1))) == [2]
    assert live.take(response("c", 2)) == {}


class Echo(BaseHTTPRequestHandler):
    """Answers with its own count of the prompts so far, and an odd text."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.prompts.append(asked["prompt"])
            number = len(self.server.prompts)
        answer = "".join(
            "data: " + json.dumps({"choices": [{"text": part, "finish_reason": None}]}) + "\n\n"
            for part in (f"answer {number}", ODD)
        )
        body = (answer + "data: [DONE]\n\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def echo(integration: None) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.lock, server.prompts, server.daemon_threads = threading.Lock(), [], True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def sessions(count: int, turns: int, think_s: float, timed: bool) -> list[WireRequest]:
    planned = []
    for session in range(count):
        for turn in range(turns):
            index = session * turns + turn
            before = tuple(range(index - turn, index))
            text = f"<{session}.{turn}> " + " ".join(f"[{answer_marker(i)}]" for i in before)
            planned.append(
                WireRequest(
                    index,
                    0.01 * session if timed and not turn else None,
                    msgspec.json.encode({"prompt": text}),
                    (index - 1,) if turn else (),
                    think_s if turn else None,
                    before,
                    session=session,
                )
            )
    return planned


@pytest.mark.parametrize(("answers", "due"), [((), 12.0), ((0,), 14.0)])
def test_the_person_thinks_from_when_an_answer_is_read(monkeypatch, answers, due):
    """Of an answer that ended at 10 s and is read at 12 s; answers that the dataset has are not read."""
    now = chain([12.0] * len(answers), repeat(20.0))
    monkeypatch.setattr("harness.loadgen.pacing.monotonic", lambda: next(now))
    client, requests = (
        Mock(),
        [WireRequest(0, 0.0, b"", session=0), WireRequest(1, None, b"", (0,), 2.0, answers, session=0)],
    )

    async def follow() -> None:
        assert Turns(client, requests).follows(RawResponse(0, 0.0, 0.0, 10.0, []))

    asyncio.run(follow())
    client.submit.assert_called_once_with(1, due, 0.0)


@pytest.mark.parametrize(("concurrency", "clients"), [(3, 2), (None, 1)])
def test_each_turn_has_the_answers_before_it_and_waits_for_the_person(echo, concurrency, clients):
    count, turns, think_s = 5, 4, 0.02
    target = Target("127.0.0.1", echo.server_port, "/v1/completions")
    plan = LoadPlan(target, sessions(count, turns, think_s, concurrency is None), concurrency)
    result = run_load(plan, clients=clients, start_delay_s=0.1)
    assert [r.error for r in result.responses] == [None] * count * turns
    answers = {r.index: read_answer(r).text for r in result.responses}
    assert len(set(answers.values())) == count * turns and all(ODD in text for text in answers.values())
    wanted = {
        f"<{session}.{turn}> "
        + " ".join(f"[{answers[session * turns + earlier]}]" for earlier in range(turn))
        for session in range(count)
        for turn in range(turns)
    }
    assert set(echo.prompts) == wanted
    for request, raw in zip(plan.requests, result.responses, strict=True):
        if request.after:
            before = result.responses[request.after[0]]
            assert raw.t_sched > before.t_end + think_s  # its answer was read before
            assert raw.t_sent >= raw.t_sched and raw.late_s == 0.0
    if concurrency is not None:  # a session keeps its place while its person thinks
        spans = [
            (result.responses[s * turns].t_sent, result.responses[(s + 1) * turns - 1].t_end)
            for s in range(count)
        ]
        for begin, _ in spans:
            assert sum(first <= begin < last for first, last in spans) <= concurrency


@pytest.mark.parametrize(
    ("calls", "filled"),
    [
        ([("ls", '{"path": "\\"a"}')], '{"path": "\\"a"}'),
        ([("rm", "{}")], RECORDED),  # another function
        ([], RECORDED),
        ([("rm", "{}"), ("ls", "{}")], RECORDED),  # at another place
    ],
)
def test_arguments_are_those_of_the_same_call_or_the_recorded_ones(calls, filled):
    marker = call_marker(3, 0, {"name": "ls", "arguments": RECORDED})
    body = msgspec.json.encode({"content": answer_marker(3), "arguments": marker, "after": "x"})
    answer = LiveAnswer("hm", calls)
    expected = {"content": "hm", "arguments": filled, "after": "x"}
    assert msgspec.json.decode(fill_body(body, {3: answer})) == expected
    assert fill_text(f"{answer_marker(3)} {marker}.", {3: answer}) == f"hm {filled}."
    assert fill_text(f"{answer_marker(3)}{marker}", {}) == RECORDED


@pytest.mark.parametrize(
    ("calls", "filled"),
    [
        ([("ls", '{"path": "a"}')], {"path": "a"}),
        ([("ls", '{"path": "a')], {"path": "."}),
        ([("ls", 5000 * '{"a":')], {"path": "."}),
        ([], {"path": "."}),
    ],
)
def test_arguments_that_are_an_object_stay_one(calls, filled):
    marker = call_marker(3, 0, {"name": "ls", "arguments": '{"path": "."}'})
    block = {"type": "text", "text": answer_marker(3)}
    body = msgspec.json.encode({"content": [block, {"name": "ls", "input": marker}]})
    expected = {"content": [block | {"text": "hm"}, {"name": "ls", "input": filled}]}
    assert msgspec.json.decode(fill_body(body, {3: LiveAnswer("hm", calls)})) == expected
    assert b'"input":{}' in fill_body(body.replace(b'.\\"', b"."), {})  # what was recorded is no JSON
    # Messages refuse a text without anything in it
    expected["content"].pop(0)
    assert msgspec.json.decode(fill_body(body, {3: LiveAnswer("", calls)})) == expected


def test_tool_calls_of_a_stream_are_read_by_their_index() -> None:
    def delta(index: int, **function: str) -> dict[str, Any]:
        return {"choices": [{"delta": {"tool_calls": [{"index": index, "function": function}]}}]}

    events = [
        delta(0, name="ls", arguments=""),
        delta(0, arguments='{"a'),
        delta(1, name="rm", arguments="{"),
    ]
    events += [delta(0, arguments='": 1}'), delta(1, arguments="}")]
    stream = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(stream)
    raw = RawResponse(0, 0.0, 0.0, 1.0, [(0.5, head + stream)])
    assert read_answer(raw).calls == [("ls", '{"a": 1}'), ("rm", "{}")]
