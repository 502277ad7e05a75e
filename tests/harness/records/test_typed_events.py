"""Streams of OpenAI's Responses and Anthropic's Messages give what a chat that says the same gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.fairness.asking import read_reply
from harness.loadgen.live_answers import read_answer
from harness.loadgen.load_plan import RawResponse
from harness.records.request_record import RequestRecord, read_request
from harness.records.stream import StreamFields, read_stream

Events = list[dict[str, Any]]
FIELDS = StreamFields(model="mine", typed=True)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"


def response(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"model": "mine", **fields}}


def text(kind: str, delta: str, place: int = 0) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "delta": delta, "output_index": place, "sequence_number": 3}


def block(kind: str, value: str, place: int = 0) -> dict[str, Any]:
    delta = {"type": f"{kind}_delta", {"input_json": "partial_json"}.get(kind, kind): value}
    return {"type": "content_block_delta", "index": place, "delta": delta}


USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 4,
    "total_tokens": 13,
}
CALL = {"type": "function_call", "call_id": "c", "name": "look"}
RESPONSES: Events = [
    response("created", output=[]),
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}},
    text("reasoning_text", "Hm"),
    text("output_text", "Yes", 1),
    {"type": "response.output_item.added", "output_index": 2, "item": CALL},
    text("function_call_arguments", '{"a":1}', 2),
    {"type": "response.function_call_arguments.done", "arguments": '{"a":1}'},
    response("completed", output=[{"type": "message"}, CALL], usage=USAGE),
]
START = {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 1}
TOOL = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
MESSAGES: Events = [
    {"type": "message_start", "message": {"model": "mine", "content": [], "usage": START}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "ping"},
    block("thinking", "Hm"),
    block("signature", "c2ln"),
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    block("text", "Yes", 1),
    {"type": "content_block_start", "index": 2, "content_block": TOOL},
    block("input_json", '{"a":1}', 2),
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 4}},
    {"type": "message_stop"},
]


def answer(events: Events, exact: int | None = None) -> tuple[RawResponse, RequestRecord]:
    """What is read of these events, each of which is sent 10 ms after the one before."""
    pieces = [(0.0, HEAD)]
    for place, event in enumerate(events, 1):
        name = event["type"].encode()
        pieces.append((place / 100, b"event: " + name + b"\ndata: " + json.dumps(event).encode() + b"\n\n"))
    raw = RawResponse(0, 0.0, 0.0, 1.0, pieces)
    return raw, read_request(raw, exact, 9, None, FIELDS)


@pytest.mark.parametrize(("events", "thought", "said"), [(RESPONSES, 3, 4), (MESSAGES, 4, 8)])
def test_times_and_counts_are_those_of_a_chat(events: Events, thought: int, said: int) -> None:
    raw, record = answer(events)
    assert (record.error, record.finish_reason, record.other_models) == (None, "tool_calls", None)
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (9, 4, 4)
    assert [record.chunks[0], record.t_answer] == [(thought / 100, 1), said / 100]
    assert record.chunks[-1][1] == 1 and record.unread_fields is None
    live = read_answer(raw)
    assert (live.text, live.calls) == ("Yes", [("look", '{"a":1}')])


@pytest.mark.parametrize("events", [RESPONSES, MESSAGES])
def test_tool_calls_are_those_of_a_chat(events: Events) -> None:
    pieces = [(0.0, b"data: " + json.dumps(event).encode() + b"\n\n") for event in events]
    stream = read_stream(pieces, complete=True, fields=FIELDS)
    assert stream.calls_tools and "".join(stream.text) == 'HmYeslook{"a":1}'


CUT = {"incomplete_details": {"reason": "max_output_tokens"}, "usage": USAGE | {"output_tokens": 2}}
FULL = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 2}}
HELLO = [text("output_text", "Hel"), text("output_text", "lo")]


@pytest.mark.parametrize(
    "events",
    [
        [*HELLO, response("incomplete", **CUT)],
        [*HELLO, response("completed", **CUT)],  # as vLLM says it
        [MESSAGES[0], block("text", "Hel"), block("text", "lo"), FULL],
    ],
)
def test_an_answer_may_end_at_its_limit(events: Events) -> None:
    _, record = answer(events, exact=2)
    assert (record.error, record.finish_reason, record.completion_tokens) == (None, "length", 2)


@pytest.mark.parametrize(
    ("events", "kind", "detail"),
    [
        ([*HELLO, response("failed", error={"code": "x", "message": "gave up"})], "stream_error", "gave up"),
        ([*HELLO, {"type": "error", "code": "x", "message": "gave up"}], "stream_error", "gave up"),
        (
            [{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}],
            "stream_error",
            "busy",
        ),
        (
            [*HELLO, response("incomplete", incomplete_details={"reason": "content_filter"})],
            "stream_error",
            "",
        ),
        ([{"type": "content_block_delta", "index": 0}], "stream_error", "content_block_delta"),
        (HELLO, "truncated", ""),
        ([*HELLO, response("completed", output=[])], "no_usage", ""),
    ],
)
def test_what_fails_is_a_failure(events: Events, kind: str, detail: str) -> None:
    _, record = answer(events)
    assert record.error == kind and detail in (record.error_detail or "")


def test_a_stream_of_generate_has_the_ids_of_each_chunk():
    """As LMDeploy 0.18.0 sent it, shortened."""

    def event(text: str, ids: list[int], count: int, end: str | None = None) -> bytes:
        meta = {"prompt_tokens": 5, "completion_tokens": count, "finish_reason": end and {"type": end}}
        return json.dumps({"text": text, "output_ids": ids, "meta_info": meta}).encode()

    events = [
        event("Ro", [27352], 1),
        event('"meta_info": aming', [7, 8], 3),
        event("", [], 3, "length"),
        b"[DONE]",
    ]
    pieces = [(float(t), b"data: " + data + b"\n\n") for t, data in enumerate(events)]
    stream = read_stream(pieces, complete=True)
    assert [(chunk.t, chunk.token_ids, chunk.reported) for chunk in stream.chunks] == [
        (0.0, 1, 1), (1.0, 2, 3), (2.0, 0, 3),
    ]  # fmt: skip
    assert (stream.prompt_tokens, stream.completion_tokens, stream.finish_reason) == (5, 3, "length")
    assert "".join(stream.text) == 'Ro"meta_info": aming' and stream.done and stream.error is None
    raw = RawResponse(0, 0.0, 0.0, 4.0, [(0.0, HEAD), *pieces])
    assert read_answer(raw).text == 'Ro"meta_info": aming'
    assert read_reply(raw, 3).tokens == [27352, 7, 8]
    said = json.dumps({"choices": [{"index": 0, "text": '"meta_info":'}]}).encode()
    assert read_stream([(0.0, b"data: " + said + b"\n\n")], complete=True).text == ['"meta_info":']
