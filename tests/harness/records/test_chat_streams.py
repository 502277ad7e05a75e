"""Chats: a role chunk, reasoning, text and tool calls are read as the mock server wrote them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.loadgen.load_plan import RawResponse
from harness.mock_server.script import Behaviour, write_script
from harness.records.request_record import RequestRecord, read_request

TOKENS, PROMPT, REASONING = 24, 32, 9
SENT = [(round(0.040 + 0.005 * i, 6), 1) for i in range(TOKENS)]


def answer(tokens_of: Callable[[str], int] | None = None, **behaviour: Any) -> RequestRecord:
    """What is read of a chat whose first token comes after 40 ms, then one each 5 ms."""
    script = write_script(Behaviour(chat=True, **behaviour), TOKENS, PROMPT)
    segments = [(round(step.after_s, 6), step.data) for step in script.steps]
    return read_request(RawResponse(0, 0.0, 0.0, 9.0, segments), TOKENS, PROMPT, tokens_of)


def words(text: str) -> int:
    """As the mock server splits its text."""
    return len(text.replace(",", " ,").split())


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("tokens_of", [None, words])
@pytest.mark.parametrize(
    ("counts", "source"),
    [
        ({}, "token_ids"),
        ({"token_ids": False}, "final_usage"),
        ({"token_ids": False, "usage": "continuous"}, "continuous_usage"),
        ({"token_ids": False, "usage": "continuous", "role_usage": 1}, "continuous_usage"),
        ({"token_ids": False, "tool_calls": 6}, "final_usage"),
        ({"token_ids": False, "end_token": True}, "final_usage"),
    ],
)
def test_reasoning_counts_and_the_answer_comes_after_it(field, tokens_of, counts, source):
    record = answer(tokens_of, reasoning=REASONING, reasoning_field=field, **counts)
    assert (record.error, record.token_source) == (None, source)
    assert record.chunks == SENT
    assert record.t_answer == SENT[REASONING][0]


def test_without_reasoning_the_answer_begins_with_the_first_token() -> None:
    assert answer().t_answer == SENT[0][0]
    assert answer(empty_first=True, token_ids=False).t_answer == SENT[0][0]
    assert answer(tool_calls=TOKENS).t_answer == SENT[0][0]


def test_an_answer_of_nothing_but_reasoning_has_no_output() -> None:
    record = answer(reasoning=TOKENS)
    assert record.error is None and record.chunks == SENT
    assert record.t_answer is None


def test_several_events_of_a_segment_are_one_chunk() -> None:
    """The last of the reasoning and the first of the answer in one write: both came at its time."""
    record = answer(reasoning=REASONING, chunks_per_write=4)
    assert [tokens for _, tokens in record.chunks] == [4] * (TOKENS // 4)
    assert record.t_answer == record.chunks[REASONING // 4][0]


def test_a_tool_call_is_not_held_against_the_tokenizer() -> None:
    """A server writes it anew: names and quotes are not what the model generated."""
    assert answer(lambda text: 1000, token_ids=False, tool_calls=3).error is None
    assert answer(lambda text: 1000, token_ids=False).error == "token_mismatch"
