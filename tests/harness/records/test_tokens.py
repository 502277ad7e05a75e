"""Servers that misreport tokens: what is read is what was sent, or the request fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.load_plan import RawResponse
from harness.mock_server.script import Behaviour, write_script
from harness.records.request_record import RequestRecord, read_request
from harness.records.stream import Stream, StreamChunk
from harness.records.tokens import count_tokens, distribute

TOKENS, PROMPT = 33, 32
SENT = [(round(0.040 + 0.005 * i, 6), 1) for i in range(TOKENS)]


def answer(
    exact: int | None = TOKENS, tokens_of: Callable[[str], int] | None = None, **behaviour: object
) -> RequestRecord:
    """What is read of a server that writes its first token after 40 ms and then one each 5 ms."""
    script = write_script(Behaviour(**behaviour), TOKENS, PROMPT)  # type: ignore[arg-type]
    segments = [(round(step.after_s, 6), step.data) for step in script.steps]
    return read_request(RawResponse(0, 0.0, 0.0, 9.0, segments), exact, PROMPT, tokens_of)


@pytest.mark.parametrize(
    ("behaviour", "source"),
    [
        ({}, "token_ids"),
        ({"ids_in": "last"}, "final_usage"),
        ({"ids_in": "first"}, "final_usage"),
        ({"token_ids": False}, "final_usage"),
        ({"token_ids": False, "usage": "continuous"}, "continuous_usage"),
        ({"token_ids": False, "usage": "continuous", "usage_ahead": 4}, "final_usage"),
        ({"token_ids": False, "usage": "continuous", "usage_ahead": TOKENS}, "final_usage"),
        ({"token_ids": False, "usage": "continuous", "chat": True, "role_usage": 1}, "continuous_usage"),
        ({"token_ids": False, "chat": True, "empty_first": True}, "final_usage"),
        ({"token_ids": False, "pings": True}, "final_usage"),
    ],
)
def test_every_token_has_the_time_at_which_its_text_was_sent(behaviour: dict[str, Any], source: str) -> None:
    record = answer(**behaviour)
    assert record.error is None
    assert record.chunks == SENT
    assert record.token_source == source


@pytest.mark.parametrize("per_token", [1, 2])
def test_without_a_count_the_tokenizer_estimates_one(per_token: int) -> None:
    """Also of another number than asked for; without a tokenizer nothing is known."""
    uncounted: dict[str, Any] = {"token_ids": False, "usage": "none"}
    record = answer(tokens_of=lambda text: per_token * TOKENS, **uncounted)
    assert (record.error, record.token_source) == (None, "estimated")
    assert record.completion_tokens == sum(tokens for _, tokens in record.chunks) == per_token * TOKENS
    assert [t for t, _ in record.chunks] == [t for t, _ in SENT]
    assert record.text_tokens is None
    near = answer(tokens_of=lambda text: TOKENS + 3, **uncounted)
    assert (near.chunks, near.completion_tokens) == (SENT, TOKENS)  # it ends at the length asked for
    assert answer(**uncounted).error == "no_usage"


def test_a_token_before_its_text_is_seen_only_by_its_id() -> None:
    assert answer(held_back=True).chunks == SENT
    dealt = answer(held_back=True, token_ids=False)
    assert dealt.token_source == "inferred"
    assert dealt.chunks[0][0] > SENT[0][0] and dealt.chunks[-1][0] == SENT[-1][0]


@pytest.mark.parametrize("together", [2, 4])
def test_events_of_one_segment_are_one_chunk(together: int) -> None:
    record = answer(chunks_per_write=together)
    merged = answer(tokens_per_chunk=together)
    assert [tokens for _, tokens in record.chunks] == [tokens for _, tokens in merged.chunks]
    assert len({t for t, _ in record.chunks}) == len(record.chunks)


@pytest.mark.parametrize("per_chunk", [2, 3])
def test_tokens_dealt_by_the_length_of_text_are_inferred(per_chunk: int) -> None:
    record = answer(token_ids=False, tokens_per_chunk=per_chunk)
    assert (record.error, record.token_source, record.completion_tokens) == (None, "inferred", TOKENS)


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ({"tokens": 17, "usage_off_by": 16, "token_ids": False}, "token_mismatch"),
        ({"tokens": 66, "usage_off_by": -33, "token_ids": False}, "token_mismatch"),
        ({"tokens": 17, "usage_off_by": 16}, "token_mismatch"),
        ({"tokens": 17}, "wrong_length"),
        ({"prompt_off_by": -28}, "prompt_mismatch"),
        ({"prompt_off_by": 2}, "prompt_mismatch"),
        ({"prompt_off_by": 99_968}, "prompt_mismatch"),
        ({"finish_reason": "content_filter"}, "stream_error"),
        ({"finish_reason": "cancelled"}, "stream_error"),
        ({"finish_reason": "timeout"}, "stream_error"),
    ],
)
def test_counts_that_cannot_be_right_fail_the_request(behaviour: dict[str, Any], kind: str) -> None:
    record = answer(tokens_of=lambda text: len(text.replace(",", " ,").split()), **behaviour)
    assert record.error == kind


def test_an_answer_that_begins_before_its_request_was_sent_fails() -> None:
    script = write_script(Behaviour(), TOKENS, PROMPT)
    raw = RawResponse(0, 0.0, 1.0, 9.0, [(step.after_s, step.data) for step in script.steps])
    assert read_request(raw, TOKENS, PROMPT).error == "protocol"


def test_a_token_that_begins_the_sequence_may_be_counted() -> None:
    assert answer(prompt_off_by=1).error is None


def test_a_claim_of_more_tokens_than_text_needs_a_tokenizer_to_be_found() -> None:
    record = answer(tokens=17, usage_off_by=16, token_ids=False)
    assert (record.error, record.token_source) == (None, "inferred")


def test_text_that_a_tokenizer_splits_more_finely_as_a_whole_is_believed() -> None:
    def tokens_of(text: str) -> int:
        return len(text.split()) ** 2

    assert answer(token_ids=False, tokens_of=tokens_of).error is None
    assert answer(token_ids=False, tokens_per_chunk=4, usage_off_by=-16, tokens_of=tokens_of).error


def said(texts: list[str]) -> Stream:
    """A stream with a token in each chunk, and their number in the usage at its end."""
    chunks = [StreamChunk(0.01 * i, len(text), 0, None, False, len(text)) for i, text in enumerate(texts)]
    return Stream(chunks=chunks, text=texts, completion_tokens=len(texts), finish_reason="length")


def cycles(tokens: int, most: int) -> st.SearchStrategy[list[tuple[list[str], int]]]:
    """At most so many cycles of so many tokens, and how often a token of each is said."""
    cycle = st.lists(st.sampled_from("EZQ"), min_size=1, max_size=tokens)
    return st.lists(st.tuples(cycle, st.integers(40, 200)), min_size=1, max_size=most)


@given(st.integers(0, 20), cycles(4, most=1) | cycles(2, most=2))
def test_an_answer_that_repeats_itself_is_believed(begin: int, repeated: list[tuple[list[str], int]]) -> None:
    """A tokenizer reads a cycle of two tokens as one again, or as a few long ones; the cycle may change."""
    texts = [f" w{i}" for i in range(begin)]
    for place, (cycle, n) in enumerate(repeated):
        texts += [f" w{begin + place}"] + [cycle[i % len(cycle)] for i in range(n)]

    def tokens_of(text: str) -> int:
        return len(re.findall(r" w\d+|[EZQ]{1,16}", text))

    assert count_tokens(said(texts), tokens_of).problem is None


@pytest.mark.parametrize(
    ("texts", "found"),
    [([" of", " the", *"_" * 14], 5), ([" ", *"100", *"+" * 12], 9), ([" so", *"=" * 7], 2)],
)
def test_a_short_answer_that_repeats_a_character_is_believed(texts: list[str], found: int) -> None:
    """A tokenizer has tokens of several such characters, and finds so many in the whole text."""

    def tokens_of(text: str) -> int:
        return len(re.findall(r" [a-z]+|_{12}|[+]{8}|={7}|.", text))

    assert tokens_of("".join(texts)) == found
    assert count_tokens(said(texts), tokens_of).problem is None


def test_text_dealt_by_characters_is_found_even_if_its_end_repeats_itself() -> None:
    text = " ".join(f"word{i}" for i in range(20)) + " end" * 4
    assert "tokenizer" in (count_tokens(said(list(text)), lambda text: len(text.split())).problem or "")


def test_characters_that_stand_for_other_bytes_are_not_counted() -> None:
    texts = ["\ufffd" * 3] * 64

    def tokens_of(text: str) -> int:
        return len(text)

    assert count_tokens(said(texts), tokens_of).problem is None
    assert count_tokens(said([f"{i:03}" for i in range(64)]), tokens_of).problem


@given(total=st.integers(0, 300), text=st.lists(st.integers(0, 40), max_size=60))
def test_spread_adds_up_and_begins_at_the_first_text(total: int, text: list[int]) -> None:
    counts = distribute(total, text)
    holders = [i for i, length in enumerate(text) if length > 0]
    assert len(counts) == len(text)
    assert all(count == 0 for count, length in zip(counts, text, strict=True) if length == 0)
    assert all(count >= 0 for count in counts)
    if holders:
        assert sum(counts) == total
        assert counts[holders[0]] >= min(1, total)
    if total >= len(holders):
        assert all(counts[i] >= 1 for i in holders)
    if total == len(holders):
        assert all(counts[i] == 1 for i in holders)


def test_longer_text_has_more_tokens() -> None:
    assert distribute(12, [4, 8, 0, 20]) == [2, 3, 0, 7]


def test_fewer_tokens_than_chunks_are_spread_evenly() -> None:
    assert distribute(2, [1, 9, 1, 9]) == [1, 0, 1, 0]
