"""The short way of a streamed token against the long one, and what is kept while a client does not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import Finished, FinishReason
from roseinfer.server.http.errors import InternalError
from roseinfer.server.openai.choice import Answer
from roseinfer.server.openai.logprobs import AnswerLogprobs, CompletionLogprobs
from roseinfer.server.openai.requests import CompletionRequest
from roseinfer.server.openai.responses import ChatShape, CompletionShape
from roseinfer.server.openai.stream import StreamedAnswer, StreamReply
from roseinfer.tokenizer.detokenizer import StopStrings
from roseinfer.tokenizer.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer("random:gpt2-tiny")
TOKENS = st.lists(st.integers(0, 50260), min_size=1, max_size=60)


class Recorder:
    """A connection that keeps what is written to it."""

    paused = False

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = False

    def begin_stream(self) -> Callable[[bytes], None]:
        return self.written.append

    def end_stream(self) -> None:
        self.ended = True


def stream(
    interval: int, with_ids: bool, chat: bool, model: str, *, logprobs: bool = False
) -> tuple[StreamReply, Recorder]:
    """A reply with one answer, whose tokens are pushed by hand."""
    assert TOKENIZER is not None
    reply, connection = StreamReply.__new__(StreamReply), Recorder()
    reply._request = CompletionRequest(prompt="", return_token_ids=with_ids, n=1)
    reply._shape = (ChatShape if chat else CompletionShape)(model)
    reply._connection = connection  # type: ignore[assignment]
    reply._backend = type("Backend", (), {"stream_interval": interval})()  # type: ignore[assignment]
    reply._open, reply._cached_tokens = 1, 0
    told = AnswerLogprobs(CompletionLogprobs, 0, TOKENIZER.names) if logprobs else None
    answer = Answer(TOKENIZER.detokenizer(), StopStrings(()), 0, told)
    reply._answers = [answer]
    reply._receiver(0, answer)
    return reply, connection


def push(answer: StreamedAnswer, tokens: list[int]) -> None:
    for token in tokens[:-1]:
        answer.push(token, None)
    answer.push(tokens[-1], Finished(0, FinishReason.LENGTH, 0, 0, 0))


def choices(connection: Recorder) -> list[Any]:
    *events, done = connection.written
    assert done == b"data: [DONE]\n\n" and connection.ended
    return [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events]


def text(choice: Any) -> str:
    shown: str = choice["delta"]["content"] if "delta" in choice else choice["text"]
    return shown


@given(tokens=TOKENS, with_ids=st.booleans(), chat=st.booleans(), model=st.sampled_from(["m", '100%d "é\\']))
def test_both_ways_say_the_same(tokens: list[int], with_ids: bool, chat: bool, model: str) -> None:
    short, long = stream(1, with_ids, chat, model), stream(1, with_ids, chat, model)
    long[0]._receivers[0]._uniform = False
    for reply, _ in (short, long):
        push(reply._receivers[0], tokens)
    assert choices(short[1]) == choices(long[1])
    assert short[0]._answers[0].tokens == len(tokens)


@given(tokens=TOKENS, interval=st.integers(1, 7))
def test_stream_interval(tokens: list[int], interval: int) -> None:
    """The first token alone, then groups, and at the end what is left."""
    reply, connection = stream(interval, True, False, "m")
    push(reply._receivers[0], tokens)
    groups = [choice["token_ids"] for choice in choices(connection)]
    assert [token for group in groups for token in group] == tokens
    assert all(len(group) == (interval if index else 1) for index, group in enumerate(groups[:-1]))
    assert 1 <= len(groups[-1]) <= interval


@given(tokens=TOKENS, data=st.data())
def test_what_comes_while_the_client_does_not_read_leaves_together(
    tokens: list[int], data: st.DataObject
) -> None:
    turns = data.draw(st.lists(st.booleans(), min_size=len(tokens) - 1, max_size=len(tokens) - 1))
    reply, connection = stream(1, True, False, "m")
    answer = reply._receivers[0]
    for token, reads in zip(tokens[:-1], turns, strict=True):
        (reply.resume if reads else reply.pause)()
        before = len(connection.written)
        answer.push(token, None)
        assert len(connection.written) - before == reads
    push(answer, tokens[-1:])
    whole = choices(connection)
    assert [token for choice in whole for token in choice["token_ids"]] == tokens
    assert TOKENIZER is not None
    detokenizer = TOKENIZER.detokenizer()
    expected = "".join(detokenizer.push(token) for token in tokens) + detokenizer.finish()
    assert "".join(map(text, whole)) == expected


@given(tokens=TOKENS, interval=st.integers(1, 5), data=st.data())
def test_every_chunk_tells_of_its_own_tokens(tokens: list[int], interval: int, data: st.DataObject) -> None:
    """Also in groups, and of those that waited for the client."""
    reply, connection = stream(interval, True, False, "m", logprobs=True)
    answer = reply._receivers[0]
    for index, token in enumerate(tokens):
        (reply.resume if data.draw(st.booleans()) else reply.pause)()
        answer.tell(TokenLogprobs([token], [-float(index)]))
        answer.push(token, Finished(0, FinishReason.LENGTH, 0, 0, 0) if index == len(tokens) - 1 else None)
    chunks = choices(connection)
    assert TOKENIZER is not None
    for chunk in chunks:
        assert chunk["token_ids"] and len(chunk["logprobs"]["tokens"]) == len(chunk["token_ids"])
    order = [-value for chunk in chunks for value in chunk["logprobs"]["token_logprobs"]]
    assert order == list(range(len(tokens)))
    offsets = [offset for chunk in chunks for offset in chunk["logprobs"]["text_offset"]]
    assert offsets == sorted(offsets) and offsets[-1] <= len("".join(map(text, chunks)))


def test_an_error_is_the_last_event() -> None:
    reply, connection = stream(1, True, False, "m")
    reply._ids = []
    reply._receivers[0].push(5, None)
    reply._receivers[0].fail(InternalError())
    _, error, done = connection.written
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 500
    assert done == b"data: [DONE]\n\n" and connection.ended
