"""Servers that cut, hold back, fill or repeat what they send: times are those of the tokens, or say so."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, groupby
from typing import Any

import msgspec
import pytest

from harness.loadgen.load_plan import RawResponse
from harness.mock_server.script import Behaviour, write_script
from harness.records.request_record import RequestRecord, read_request
from harness.records.stream import OWN_FIELDS, Stream, StreamChunk, StreamFields, read_stream
from harness.records.tokens import count_tokens, join_near

TOKENS, PROMPT = 33, 32
WRITE_S = 3e-5


def answer(
    fields: StreamFields = OWN_FIELDS, tokens_of: Callable[[str], int] | None = None, **behaviour: Any
) -> RequestRecord:
    """What is read of a server that generates a token each 5 ms from 40 ms on. Writes take 0.03 ms each."""
    script = write_script(Behaviour(**behaviour), TOKENS, PROMPT)
    segments = []
    for _, steps in groupby(script.steps, key=lambda step: step.after_s):
        segments += [(step.after_s + WRITE_S * i, step.data) for i, step in enumerate(steps)]
    return read_request(RawResponse(0, 0.0, 0.0, 9.0, segments), None, None, tokens_of, fields)


def figures(record: RequestRecord) -> tuple[float, float, float, list[int]]:
    """TTFT, TPOT and E2E in ms, and the tokens of each chunk."""
    assert record.error is None, record.error_detail
    (first, k), (last, _) = record.chunks[0], record.chunks[-1]
    after_first = sum(tokens for _, tokens in record.chunks) - k
    return first * 1e3, (last - first) * 1e3 / after_first, last * 1e3, [n for _, n in record.chunks]


IN_TURN = [1, 3, 2, 8, 1, 3, 2, 8, 1, 3, 1]


@pytest.mark.parametrize(
    ("behaviour", "ttft", "e2e", "sizes"),
    [
        ({}, 40, 200, [1] * 33),
        ({"tokens_per_chunk": 2}, 40, 195, [2] * 16 + [1]),
        ({"tokens_per_chunk": 8}, 40, 165, [8] * 4 + [1]),
        ({"chunk_tokens": (1, 3, 2, 8)}, 40, 200, IN_TURN),
        ({"first_tokens": 16}, 115, 200, [16] + [1] * 17),
    ],
)
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("counts", [{}, {"token_ids": False, "usage": "continuous"}])
def test_however_its_bytes_are_cut_an_answer_has_the_same_times(
    behaviour: dict[str, Any], ttft: float, e2e: float, sizes: list[int], split: bool, counts: dict[str, Any]
) -> None:
    found = figures(answer(**behaviour, **counts, split_writes=split))
    assert found[:3] == pytest.approx((ttft, 5, e2e), abs=0.5)
    assert found[3] == sizes


@pytest.mark.parametrize(
    ("gaps_ms", "chunks"),
    [
        ([0.2] * 63, 64),  # GPT-2 on a fast GPU
        ([0.2] * 40 + [2000] + [0.2] * 20, 62),  # the same, with a pause
        ([0.2] * 40 + [3] * 5 + [0.2] * 20, 66),
        ([15, 0.05, 0.3, 0.04] * 8, 9),  # a write that was late
        ([20, 0.2, 0.2, 0.2] * 8, 9),  # slow writes
        ([0.15] * 15 + [5] * 48, 49),  # the same, of tokens that were held back
        ([0.02] * 31, 1),
        ([5.0] * 31, 32),
    ],
)
def test_fast_tokens_stay_apart_and_fast_writes_do_not(gaps_ms: list[float], chunks: int) -> None:
    events = [(0.1 + t / 1e3, 1) for t in accumulate(gaps_ms, initial=0.0)]
    joined = join_near(events, 0.0)
    assert (len(joined), sum(tokens for _, tokens in joined)) == (chunks, len(events))
    assert joined[-1][0] == events[-1][0]


CHAT = {"chat": True, "token_ids": False}


@pytest.mark.parametrize(
    ("behaviour", "ttft", "e2e", "source"),
    [
        ({"filler": " ", "token_ids": False}, 40, 200, "final_usage"),
        ({"filler": "\u200b", **CHAT}, 40, 200, "final_usage"),
        ({"filler": "<think>\n", **CHAT}, 40, 200, "final_usage"),
        ({"role_text": " ", **CHAT}, 40, 200, "final_usage"),
        ({"filler": "Well"}, 40, 200, "token_ids"),
        ({"filler": "Well", "token_ids": False, "usage": "continuous"}, 40, 200, "continuous_usage"),
        ({"role_text": "a", **CHAT, "usage": "continuous", "role_usage": 1}, 40, 200, "continuous_usage"),
        ({"filler": "Well", "token_ids": False}, 20, 200, "inferred"),  # nothing tells them apart
        ({"flush_ms": 300, "token_ids": False}, 40, 500, "inferred"),
        ({"flush_ms": 300}, 40, 500, "token_ids"),
        ({"after_done": 5}, 40, 200, "token_ids"),
        ({"ids_in": "so far", "usage": "none"}, 40, 200, "token_ids"),
        ({"ids_in": "each, and all at the end", "usage": "none"}, 40, 200, "token_ids"),
        ({"answers": 2, "usage_off_by": 33}, 40, 200, "token_ids"),
        ({"prompt_off_by": -PROMPT}, 40, 200, "token_ids"),
    ],
)
def test_what_is_no_token_moves_no_time(
    behaviour: dict[str, Any], ttft: float, e2e: float, source: str
) -> None:
    record = answer(**behaviour)
    assert figures(record)[:3:2] == pytest.approx((ttft, e2e), abs=0.1)
    assert (record.completion_tokens, record.token_source) == (TOKENS, source)


def test_text_in_an_unknown_field_is_told_and_can_be_named() -> None:
    hidden: dict[str, Any] = {"reasoning": 16, "reasoning_field": "reasoning_details", **CHAT}
    record = answer(**hidden)
    assert record.unread_fields == "reasoning_details" and record.chunks[0][0] == pytest.approx(0.12)
    record = answer(StreamFields(content=["reasoning_details"]), **hidden)
    assert (record.unread_fields, record.token_source) == (None, "final_usage")
    assert figures(record)[:3] == pytest.approx((40, 5, 200))
    assert record.t_answer == pytest.approx(0.12)


def test_parts_of_an_unknown_field_are_text() -> None:
    delta = {
        "content": "",
        "details": [{"type": "x", "text": "thin"}, {"summary": ["k"]}],
        "audio": {"id": 1},
    }
    event = b"data: " + msgspec.json.encode({"choices": [{"delta": delta}]}) + b"\n\n"
    stream = read_stream([(0.0, event)], complete=True, fields=StreamFields(content=["details"]))
    assert (stream.text, dict(stream.unread)) == (["think"], {})
    assert read_stream([(0.0, event)], complete=True).unread == {"details": 1}


def test_a_server_that_counts_no_prompt_tokens_counts_none() -> None:
    assert (answer().prompt_tokens, answer(prompt_off_by=-PROMPT).prompt_tokens) == (PROMPT, None)


@pytest.mark.parametrize(
    ("texts", "claimed", "found"),
    [
        ([f" w{i}" for i in range(40)], 40, 40),
        ([f" w{i} v{i}" if i % 5 < 2 else f" w{i}" for i in range(40)], 40, 56),  # it counts chunks
        ([f" w{i}" for i in range(40)], 60, 40),
        ([f" w{i % 2}" for i in range(40)], 60, None),  # that says nothing
    ],
)
def test_tokens_that_a_tokenizer_finds_are_kept(texts: list[str], claimed: int, found: int | None) -> None:
    chunks = [StreamChunk(0.01 * i, len(text), None, None) for i, text in enumerate(texts)]
    stream = Stream(chunks=chunks, text=texts, completion_tokens=claimed)
    assert count_tokens(stream, lambda text: len(text.split())).text_tokens == found


@pytest.mark.parametrize(
    ("named", "other"),
    [("mock", None), ("/models/Mock", None), ("mock@main", None), ("mock-small", "mock-small"), ("", None)],
)
def test_a_model_that_was_not_asked_for_is_kept_with_its_name(named: str, other: str | None) -> None:
    assert answer(StreamFields(model="org/mock"), model=named).other_models == other
