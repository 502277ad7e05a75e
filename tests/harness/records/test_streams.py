"""Streams as real servers send them, and every way in which one can be wrong."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness.loadgen.load_plan import ErrorKind, RawResponse
from harness.records.request_record import RequestRecord, read_request
from harness.records.stream import StreamFields, read_error

JSON = "application/json"
#: As of a running server, whose engine is unknown.
TIMES = {
    "queue_wait_ms": ["queue_wait_ms", "queue_time_ms"],
    "prefill_ms": ["prompt_ms", "prefill_ms", "time_to_first_token_ms"],
}


def event(body: Any, newline: str = "\n") -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    return f"data: {text}{newline * 2}".encode()


def completion(text: str, **choice: Any) -> dict[str, Any]:
    return {"object": "text_completion", "choices": [{"index": 0, "text": text, **choice}]}


def chat(**delta: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}


def usage(completion_tokens: int, reasoning_tokens: int = 0, **details: int) -> dict[str, Any]:
    counts = {"prompt_tokens": 7, "completion_tokens": completion_tokens, "total_tokens": 0}
    more: dict[str, Any] = {"prompt_tokens_details": details or None}
    if reasoning_tokens:
        more["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return {"object": "text_completion", "choices": [], "usage": counts | more}


@pytest.mark.parametrize("cached", [None, 0, 5])
def test_prompt_tokens_from_the_cache(cached: int | None) -> None:
    details = {} if cached is None else {"cached_tokens": cached}
    first = event(completion("x", token_ids=[1], finish_reason="length"))
    assert read([first, event(usage(1, **details)), event("[DONE]")]).cached_tokens == cached


@pytest.mark.parametrize(("hit", "known"), [(3, 3), (9999, None)])
def test_prompt_tokens_from_the_cache_of_deepseek_and_more_than_there_are(
    hit: int, known: int | None
) -> None:
    first = event(completion("x", token_ids=[1], finish_reason="length"))
    counted = {"usage": {"prompt_tokens": 10, "completion_tokens": 1, "prompt_cache_hit_tokens": hit}}
    assert read([first, event({"choices": [], **counted}), event("[DONE]")]).cached_tokens == known


def read(
    reads: Sequence[bytes],
    *,
    exact: int | None = None,
    status: int = 200,
    content_type: str | None = "text/event-stream; charset=utf-8",
    coding: str | None = None,
    error: ErrorKind | None = None,
    tokens_of: Callable[[str], int] | None = None,
) -> RequestRecord:
    """One read a second, the head's at 0, in a body that ends with the connection."""
    kind = f"Content-Type: {content_type}\r\n" if content_type else ""
    coded = f"Content-Encoding: {coding}\r\n" if coding else ""
    head = f"HTTP/1.1 {status} X\r\n{kind}{coded}\r\n".encode()
    segments = [(float(t), data) for t, data in enumerate([head, *reads])]
    raw = RawResponse(0, 0.0, 0.0, 9.0, segments, error, error or "")
    return read_request(raw, exact, tokens_of=tokens_of, fields=StreamFields(TIMES))


def test_vllm_with_token_ids_and_metrics() -> None:
    metrics = {"time_to_first_token_ms": 30.5, "queue_time_ms": 1.5, "mean_itl_ms": 4.0}
    record = read(
        [
            event(completion("", token_ids=[5], prompt_token_ids=[1, 2])),  # half a character: no text yet
            event(completion("é!", token_ids=[6, 7, 8])),
            event(completion(" end", token_ids=[9], finish_reason="length")),
            event({**usage(5), "metrics": metrics}),
            event("[DONE]"),
        ],
        exact=5,
    )
    assert record.error is None
    assert record.chunks == [(1.0, 1), (2.0, 3), (3.0, 1)]
    assert (record.token_source, record.completion_tokens, record.prompt_tokens) == ("token_ids", 5, 7)
    assert record.times == {"queue_wait_ms": 1.5, "prefill_ms": 30.5}
    assert record.finish_reason == "length"


def test_roseinfer_tells_its_metrics_in_the_last_choice() -> None:
    metrics = {"queue_wait_ms": 2.0, "prefill_ms": 9.0, "time_to_first_token_ms": 11.0}
    record = read([event(completion("a", token_ids=[1], finish_reason="length", metrics=metrics))])
    assert record.error is None
    assert record.times == {"queue_wait_ms": 2.0, "prefill_ms": 9.0}


def test_llama_cpp_tells_its_prefill_in_timings() -> None:
    timings = {"cache_n": 0, "prompt_n": 7, "prompt_ms": 17.5, "predicted_n": 1, "predicted_ms": 0.01}
    last = {**usage(1), "choices": [{"text": "", "finish_reason": "length"}], "timings": timings}
    record = read([event(completion("a")), event(last), event("[DONE]")])
    assert record.error is None
    assert record.times == {"prefill_ms": 17.5}


def test_metrics_of_another_shape_are_left_alone() -> None:
    last = {**completion("a", token_ids=[1], finish_reason="stop"), "metrics": ["?"]}
    assert read([event(last)]).error is None


def test_chat_with_continuous_usage() -> None:
    def with_usage(body: dict[str, Any], tokens: int) -> dict[str, Any]:
        return {**body, "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}

    record = read(
        [
            event(with_usage(chat(role="assistant", content=""), 0)),
            event(with_usage(chat(reasoning_content="hm"), 2)),
            event(with_usage(chat(content=""), 3)),
            event(with_usage(chat(content="yes"), 4)),
            event(usage(4)),
            event("[DONE]"),
        ],
        exact=4,
    )
    assert record.error is None
    assert record.chunks == [(2.0, 2), (3.0, 1), (4.0, 1)]
    assert record.token_source == "continuous_usage"


def test_sglang_merges_tokens_and_tells_only_at_the_end() -> None:
    record = read(
        [
            event(completion("ab", finish_reason=None)),
            event(completion("abcdef", finish_reason=None)),
            event(completion("", finish_reason="length")),
            event(usage(4)),
            event("[DONE]"),
        ],
        exact=4,
    )
    assert record.error is None
    assert record.chunks == [(1.0, 2), (2.0, 2)]
    assert record.token_source == "inferred"


def test_transformers_ends_without_done() -> None:
    last = {**chat(), "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    last["choices"][0]["finish_reason"] = "length"
    reads = [event(chat(role="assistant")), event(chat(content="a")), event(chat(content="b")), event(last)]
    record = read(reads, exact=2)
    assert record.error is None
    assert record.chunks == [(2.0, 1), (3.0, 1)]


def test_mistral_sends_parts() -> None:
    def part(text: str) -> dict[str, str]:
        return {"type": "text", "text": text}

    record = read(
        [
            event(chat(role="assistant", content="")),
            event(chat(content=[{"type": "thinking", "thinking": [part("hm"), part(" so")]}])),
            event(chat(content=[{"type": "thinking", "thinking": " so"}])),
            event(chat(content=[part("yes"), {"type": "reference", "reference_ids": [1]}])),
            event(chat(content=" indeed")),
            event({"choices": [{"delta": {"content": ""}, "finish_reason": "stop"}]}),
            event(usage(4)),
            event("[DONE]"),
        ]
    )
    assert (record.error, record.token_source) == (None, "final_usage")
    assert record.chunks == [(2.0, 1), (3.0, 1), (4.0, 1), (5.0, 1)] and record.t_answer == 4.0


def reasoned(deltas: Sequence[dict[str, Any]], tokens: int, hidden: int, **options: Any) -> RequestRecord:
    """A chat of these deltas, one a second after its role, with so many tokens in all by its usage."""
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    bodies = [chat(role="assistant", content=""), *(chat(**delta) for delta in deltas), end]
    return read([*map(event, bodies), event(usage(tokens, hidden)), event("[DONE]")], **options)


WORDS = [{"content": " word"}] * 33


def test_hidden_reasoning_is_in_no_chunk() -> None:
    record = reasoned(WORDS, 481, 448)
    assert (record.error, record.token_source) == (None, "final_usage")
    assert record.chunks == [(2.0 + i, 1) for i in range(33)]
    assert (record.completion_tokens, record.hidden_tokens) == (33, 448)
    assert reasoned(WORDS, 481, 448, exact=481).error is None
    assert reasoned(WORDS, 34, 0).hidden_tokens is None


def test_hidden_reasoning_is_in_no_usage_of_a_chunk() -> None:
    bodies = [chat(content=" word") | {"usage": {"completion_tokens": 448 + i}} for i in (1, 2, 3)]
    record = read([*map(event, bodies), event(usage(451, 448)), event("[DONE]")], exact=451)
    assert (record.error, record.token_source) == (None, "continuous_usage")
    assert record.chunks == [(1.0, 1), (2.0, 1), (3.0, 1)]


@pytest.mark.parametrize("beside", [True, False])
def test_reasoning_may_be_counted_beside_the_other_tokens(beside: bool) -> None:
    """As xAI does, and the total tells: eight chunks of two tokens, with as many tokens of reasoning."""
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    counted = usage(16 if beside else 32, 16)
    counted["usage"]["total_tokens"] = 7 + 32
    record = read(
        [*map(event, [chat(content=" two words")] * 8), event(end), event(counted), event("[DONE]")]
    )
    assert (record.error, record.completion_tokens, record.hidden_tokens) == (None, 16, 16)


def test_a_role_in_every_chunk_and_an_end_token() -> None:
    counts = [(" a", 1), (" b", 2), ("", 3)]
    bodies = [
        {**chat(role="assistant", content=text), "usage": {"completion_tokens": n}} for text, n in counts
    ]
    bodies[-1]["choices"][0]["finish_reason"] = "stop"
    record = read([*map(event, bodies), event(usage(3)), event("[DONE]")])
    assert (record.error, record.completion_tokens) == (None, 3)
    assert record.token_source == "continuous_usage"


def test_a_chunk_nested_too_deeply_is_not_understood() -> None:
    deep = '{"choices": [], "debug": ' + "[" * 5000 + "]" * 5000 + "}"
    for text in (deep, deep[:-1] + r', "x": "\ud800"}'):
        record = read([event(completion("a", token_ids=[1])), event(text), event("[DONE]")])
        assert record.error == "stream_error" and "nested too deeply" in (record.error_detail or "")


@pytest.mark.parametrize(("error", "kept"), [("timeout", "timeout"), ("disconnected", None)])
def test_a_complete_answer_whose_response_does_not_end(error: ErrorKind, kept: ErrorKind | None) -> None:
    """One that the client waits for until its timeout takes the time of others."""
    record = read(
        [event(completion("a", finish_reason="stop")), event(usage(1)), event("[DONE]")], error=error
    )
    assert record.error == kept
    assert kept is None or "the answer is complete" in (record.error_detail or "")


@pytest.mark.parametrize(
    ("deltas", "counted"),
    [
        ([{"reasoning_content": "hm"}] * 20 + [{"content": "yes"}] * 10, 30),
        ([{"content": "hm"}] * 20 + [{"content": "yes"}] * 10, 30),
        ([{"content": "hm and so on, for many tokens a chunk " * 2}] * 8, 30),
        ([{"content": "hm </think>"}] * 5 + [{"content": "yes"}] * 5, 30),
    ],
)
def test_reasoning_that_is_shown_counts(deltas: list[dict[str, Any]], counted: int) -> None:
    record = reasoned(deltas, counted, 20)
    assert (record.error, record.completion_tokens, record.hidden_tokens) == (None, counted, None)


def test_the_tokenizer_sees_whether_reasoning_is_in_chunks_of_several_tokens() -> None:
    deltas = [{"content": " hm" * 6}] * 5
    shown = reasoned(deltas, 30, 20, tokens_of=lambda text: len(text.split()))
    assert (shown.completion_tokens, shown.hidden_tokens) == (30, None)
    hidden = reasoned(deltas, 50, 20, tokens_of=lambda text: len(text.split()))
    assert (hidden.completion_tokens, hidden.hidden_tokens) == (30, 20)


def test_an_answer_of_nothing_but_hidden_reasoning_says_so() -> None:
    record = reasoned([], 64, 64)
    assert record.error == "only_reasoning" and record.chunks == []
    assert record.error_detail == "64 tokens were counted, all of them hidden reasoning: raise --output-len"


def test_comments_other_fields_crlf_and_data_of_several_lines() -> None:
    body = b': ping\r\n\r\nevent: token\r\nid: 1\r\ndata: {\r\ndata:  "choices": [{"text": "a",'
    rest = b'\r\ndata: "token_ids": [1], "finish_reason": "stop"}]}\r\n\r\ndata:[DONE]'
    record = read([body, rest])
    assert record.error is None
    assert record.chunks == [(2.0, 1)]


def test_a_byte_order_mark_is_none_of_the_first_event() -> None:
    ends = event(completion("b", finish_reason="stop"))
    record = read([b"\xef\xbb\xbf" + event(completion("a")), ends, event(usage(2)), event("[DONE]")])
    assert (record.chunks, record.token_source) == ([(1.0, 1), (2.0, 1)], "final_usage")


def test_an_answer_of_any_length_says_why_it_ended() -> None:
    whole = [event(completion("a", token_ids=[1])), event(usage(1)), event("[DONE]")]
    assert read(whole).error == "truncated"
    assert read(whole, exact=1).error is None


def test_an_error_of_fastapi_within_a_stream() -> None:
    body = [event(completion("a", token_ids=[1])), event({"detail": "upstream reset"}), event("[DONE]")]
    record = read(body, exact=1)
    assert record.error == "stream_error"
    assert "upstream reset" in (record.error_detail or "")


def test_an_empty_reason_to_finish_ends_nothing() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": ""}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    record = read([*map(event, chunks), event(end), event(usage(3)), event("[DONE]")])
    assert record.chunks == [(2.0, 1), (3.0, 1), (4.0, 1)]


@pytest.mark.parametrize("every_chunk", [True, False])
def test_the_only_token_of_an_answer_may_have_no_text(every_chunk: bool) -> None:
    """As vLLM sends a token that is half a character, with and without usage in every chunk."""
    last = (usage(1) if every_chunk else {}) | completion("", finish_reason="length")
    record = read([event(last), event(usage(1)), event("[DONE]")], exact=1)
    assert (record.error, record.completion_tokens, record.chunks) == (None, 1, [(1.0, 1)])
    assert record.token_source == ("continuous_usage" if every_chunk else "final_usage")


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([1, 2, 3], [(1.0, 1), (2.0, 1), (3.0, 1)]),
        ([3, 3, 3], None),  # all of it from the first chunk on
        ([1, 2, 64], None),  # a chunk of many tokens would have text
        ([None, None, 3], None),
    ],
)
def test_an_answer_without_text_counts_where_each_chunk_adds_a_token(
    counts: list[int | None], found: list[tuple[float, int]] | None
) -> None:
    chunks = [({} if count is None else usage(count)) | completion("") for count in counts]
    chunks[-1] |= completion("", finish_reason="length")
    record = read([*map(event, chunks), event(usage(counts[-1] or 0)), event("[DONE]")])
    assert record.chunks == (found or [])
    assert record.error == (None if found else "no_tokens")


@pytest.mark.parametrize("reason", ["eos", "model_length", "end_turn", "max_tokens"])
def test_reasons_to_finish_of_other_servers(reason: str) -> None:
    chunks = [completion("a"), completion("b", finish_reason=reason)]
    record = read([*map(event, chunks), event(usage(2)), event("[DONE]")])
    assert (record.error, record.finish_reason) == (None, reason)


def test_a_chunk_is_stamped_when_its_last_byte_came() -> None:
    stream = event(completion("a", token_ids=[1])) + event(
        completion("b", token_ids=[2], finish_reason="stop")
    )
    cut = stream.index(b"\n\n")
    record = read([stream[: cut + 1], stream[cut + 1 : cut + 9], stream[cut + 9 :]])
    assert record.chunks == [(2.0, 1), (3.0, 1)]


def test_a_line_of_a_megabyte() -> None:
    text = "x" * 1_000_000
    body = event(completion(text, token_ids=[1, 2], finish_reason="length"))
    record = read([body[i : i + 65536] for i in range(0, len(body), 65536)])
    assert record.error is None and record.completion_tokens == 2


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b":\n", b": ping\n\n"])
def test_lines_without_data_take_no_memory_when_they_are_read(line: bytes) -> None:
    body = line * ((1 << 18) // len(line))
    tracemalloc.start()
    record = read([GOOD[0] + body, body, b"".join(GOOD[1:])])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (record.error, record.chunks) == (None, [(1.0, 1)])
    assert most < 12 * len(body)


def test_a_long_error_of_a_server_is_cut() -> None:
    assert len(read_error(b'{"error": {"message": "' + b"a" * 5_000_000 + b'"}}')) == 500


GOOD = [event(completion("a", token_ids=[1], finish_reason="length")), event(usage(1)), event("[DONE]")]


@pytest.mark.parametrize(
    ("reads", "options", "kind", "detail"),
    [
        ([b'{"error": {"message": "long"}}'], {"status": 400, "content_type": JSON}, "http_400", "long"),
        ([b"out of memory"], {"status": 500, "content_type": "text/plain"}, "http_500", "out of memory"),
        ([], {"status": 307}, "http_307", ""),
        ([event({"error": {"message": "engine died", "code": 500}})], {}, "stream_error", "engine died"),
        ([event({"error": "engine died"}), event("[DONE]")], {}, "stream_error", "engine died"),
        ([event({"object": "error", "message": "engine died"})], {}, "stream_error", "engine died"),
        ([GOOD[0], event({"code": 1, "message": "engine died"}), GOOD[2]], {}, "stream_error", "engine died"),
        ([event("{not json")], {}, "stream_error", "not json"),
        ([event("null")], {}, "stream_error", "null"),
        ([event(completion("a", token_ids=["x"]))], {}, "stream_error", "token_ids"),
        ([b'{"choices": []}'], {"content_type": JSON}, "stream_error", JSON),
        ([event(completion("a", finish_reason="abort"))], {}, "stream_error", "abort"),
        ([event(completion("a", finish_reason="content_filter"))], {}, "stream_error", "content_filter"),
        ([event(completion("a", finish_reason="timeout"))], {}, "stream_error", "timeout"),
        ([event(completion("a", finish_reason="cancelled"))], {}, "stream_error", "cancelled"),
        (GOOD[:1], {"error": "disconnected"}, "disconnected", ""),
        ([event({"error": "engine died"})], {"error": "disconnected"}, "stream_error", "engine died"),
        ([b"\x1f\x8b\x08\x00"], {"coding": "gzip"}, "stream_error", "compressed (gzip)"),
        ([], {"error": "timeout"}, "timeout", ""),
        ([event(completion("a", token_ids=[1]))], {}, "truncated", "DONE"),
        ([], {}, "truncated", "DONE"),
        ([event("[DONE]")], {}, "no_tokens", ""),
        ([event(usage(3)), event("[DONE]")], {}, "no_tokens", ""),
        ([event(completion("a")), event("[DONE]")], {}, "no_usage", "1 chunks"),
        ([GOOD[0], event(usage(2)), GOOD[2]], {}, "token_mismatch", "2 by the final usage"),
        (GOOD, {"exact": 2}, "wrong_length", "2 asked for"),
    ],
)  # fmt: skip
def test_failures(reads: list[bytes], options: dict[str, Any], kind: str, detail: str) -> None:
    record = read(reads, **options)
    assert record.error == kind
    assert record.error_detail is not None and detail in record.error_detail


def test_good_streams_are_good() -> None:
    assert read(GOOD, exact=1).error is None
    assert read(GOOD, content_type=None).error is None
    assert read(GOOD, error="disconnected").error is None  # all was said before the connection broke


def test_nothing_came_at_all() -> None:
    raw = RawResponse(0, 0.0, None, 1.0, [], "connect", "refused")
    record = read_request(raw, 4)
    assert (record.error, record.error_detail, record.status) == ("connect", "refused", None)
