"""Tokens sent directly against the others, and what is kept while a client does not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.config import EngineConfig
from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import Finished, FinishReason, SamplingParams
from roseinfer.server.http.errors import InternalError
from roseinfer.server.openai.completion import Backend
from roseinfer.server.openai.generation import Generation
from roseinfer.server.openai.requests import StreamOptions
from roseinfer.server.openai.responses import ChatFormat, ChoiceBody, CompletionFormat
from roseinfer.server.openai.stream import StreamedChoice, StreamedCompletion
from roseinfer.server.openai.tool_calls import ToolCalls
from roseinfer.tokenizer.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer("random:gpt2-tiny")
TOKENS = st.lists(st.integers(0, 50260), min_size=1, max_size=60)


class Recorder:
    """A connection that keeps what is written to it."""

    received = 0.0

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = False

    def begin_stream(self, event: bytes) -> Callable[[bytes], None]:
        self.written.append(event)
        return self.written.append

    def end_stream(self, *events: bytes) -> None:
        self.written += events
        self.ended = True

    def answer_with(self, producer: object) -> None:
        pass


class NoEngine:
    """Takes requests and makes nothing of them."""

    info = SimpleNamespace(config=EngineConfig())

    def submit(self, *request: object) -> list[int]:
        return [0]

    def discard(self, id: int) -> None:
        pass


def stream(
    interval: int, with_ids: bool, chat: bool, model: str, *, logprobs: bool = False, calls: bool = False
) -> tuple[StreamedCompletion, Recorder]:
    """A completion of one choice, whose tokens are pushed by hand."""
    connection = Recorder()
    backend = Backend(NoEngine(), TOKENIZER, model, interval, None)  # type: ignore[arg-type]
    params = SamplingParams(100, logprobs=0 if logprobs else None)
    generation = Generation(("",), params, 1, (), with_ids, stream=StreamOptions(), calls_tools=calls)
    format = (ChatFormat if chat else CompletionFormat)(model)
    completion = StreamedCompletion(backend, connection, generation, format, 0.0)  # type: ignore[arg-type]
    completion.start([np.array([1], dtype=np.int32)])
    return completion, connection


def push(choice: StreamedChoice, tokens: list[int]) -> None:
    for token in tokens[:-1]:
        choice.push(token, None)
    choice.push(tokens[-1], Finished(0, FinishReason.LENGTH, 0, 0, 0))


def choices(connection: Recorder) -> list[Any]:
    *events, last = connection.written
    assert last == b"data: [DONE]\n\n" and connection.ended
    return [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events]


def text(choice: Any) -> str:
    shown: str = choice["delta"]["content"] if "delta" in choice else choice["text"]
    return shown


@given(tokens=TOKENS, with_ids=st.booleans(), chat=st.booleans(), model=st.sampled_from(["m", '100%d "é\\']))
def test_direct_chunks_equal_the_others(tokens: list[int], with_ids: bool, chat: bool, model: str) -> None:
    direct, other = stream(1, with_ids, chat, model), stream(1, with_ids, chat, model)
    other[0].choices[0].uniform = False
    for completion, _ in (direct, other):
        push(completion.choices[0], tokens)
    assert choices(direct[1]) == choices(other[1])
    assert direct[0].usage().completion_tokens == len(tokens)


@given(steps=st.lists(TOKENS, min_size=2, max_size=8), uniform=st.booleans())
def test_the_tokens_of_a_step_share_a_chunk(steps: list[list[int]], uniform: bool) -> None:
    completion, connection = stream(1, True, False, "m")
    choice = completion.choices[0]
    choice.uniform &= uniform
    choice.push(1, None)
    for step in steps[:-1]:
        for left, token in zip(range(len(step))[::-1], step, strict=True):
            choice.push(token, None, left > 0)
    push(choice, steps[-1][-1:])
    assert [chunk["token_ids"] for chunk in choices(connection)] == [[1], *steps[:-1], steps[-1][-1:]]
    assert completion.usage().completion_tokens == 2 + sum(map(len, steps[:-1]))


def test_tool_calls_in_chunks_and_in_a_message() -> None:
    assert TOKENIZER is not None
    called = 'Hm <tool_call>{"name": "ls", "arguments": {"a": 1}}</tool_call>'
    completion, connection = stream(1, True, True, "m", calls=True)
    tokens = TOKENIZER.encode(called).tolist()
    for token in tokens:
        completion.choices[0].push(token, None)
    completion.choices[0].push(0, Finished(0, FinishReason.STOP, 0, 0, 0))
    chunks = choices(connection)
    deltas = [chunk["delta"] for chunk in chunks]
    assert "".join(delta["content"] or "" for delta in deltas) == "Hm "
    first, *more = [part for delta in deltas for part in delta.get("tool_calls", ())]
    assert first["id"] and (first["type"], first["function"]["name"], first["index"]) == ("function", "ls", 0)
    assert more and "".join(part["function"]["arguments"] for part in (first, *more)) == '{"a": 1}'
    assert [chunk["finish_reason"] for chunk in chunks[-2:]] == [None, "tool_calls"]
    calls = ToolCalls()
    body = ChoiceBody(0, "", None, "tool_calls", tool_calls=calls.push(called[3:], "stop")[1])
    [whole] = json.loads(ChatFormat("m").whole([body], None))["choices"]
    [call] = whole["message"]["tool_calls"]
    function = {"name": "ls", "arguments": '{"a": 1}'}
    assert call == {"id": call["id"], "type": "function", "function": function}
    assert whole["message"]["content"] is None


@given(tokens=TOKENS, interval=st.integers(1, 7))
def test_stream_interval(tokens: list[int], interval: int) -> None:
    """The first token alone, then groups, and at the end what is left."""
    completion, connection = stream(interval, True, False, "m")
    push(completion.choices[0], tokens)
    groups = [chunk["token_ids"] for chunk in choices(connection)]
    assert [token for group in groups for token in group] == tokens
    assert all(len(group) == (interval if index else 1) for index, group in enumerate(groups[:-1]))
    assert 1 <= len(groups[-1]) <= interval


@given(tokens=TOKENS, data=st.data())
def test_what_comes_while_the_client_does_not_read_leaves_together(tokens, data):
    turns = data.draw(st.lists(st.booleans(), min_size=len(tokens) - 1, max_size=len(tokens) - 1))
    completion, connection = stream(1, True, False, "m")
    choice = completion.choices[0]
    for token, reads in zip(tokens[:-1], turns, strict=True):
        (completion.resume if reads else completion.pause)()
        before = len(connection.written)
        choice.push(token, None)
        assert len(connection.written) - before == reads
    push(choice, tokens[-1:])
    whole = choices(connection)
    assert [token for choice in whole for token in choice["token_ids"]] == tokens
    detokenizer = TOKENIZER.detokenizer()
    expected = "".join(detokenizer.push(token) for token in tokens) + detokenizer.finish()
    assert "".join(map(text, whole)) == expected


def test_a_client_that_stops_reading_while_it_is_written_to() -> None:
    """Later tokens are kept, as a write may pause the connection."""
    completion, connection = stream(1, True, False, "m")
    choice = completion.choices[0]

    class Written(list[bytes]):
        def append(self, event: bytes) -> None:
            super().append(event)
            if len(self) == 2:
                completion.pause()

    connection.written = Written()
    choice.push(5, None)
    completion.pause()
    choice.push(6, None)
    completion.resume()
    assert len(connection.written) == 2 and completion.paused
    choice.push(7, None)
    assert len(connection.written) == 2
    completion.resume()
    push(choice, [8])
    assert [token for each in choices(connection) for token in each["token_ids"]] == [5, 6, 7, 8]


@given(tokens=TOKENS, interval=st.integers(1, 5), data=st.data())
def test_every_chunk_lists_its_own_tokens(tokens: list[int], interval: int, data: st.DataObject) -> None:
    """Also in groups, those of one step, and those that waited for the client."""
    completion, connection = stream(interval, True, False, "m", logprobs=True)
    choice, more = completion.choices[0], 0
    for index, token in enumerate(tokens):
        (completion.resume if data.draw(st.booleans()) else completion.pause)()
        if not more:
            count = data.draw(st.integers(1, len(tokens) - index))  # tokens of a step
            for place in range(index, index + count):
                choice.add_logprobs(TokenLogprobs([tokens[place]], [-float(place)]))
            more = count
        more -= 1
        last = index == len(tokens) - 1
        choice.push(token, Finished(0, FinishReason.LENGTH, 0, 0, 0) if last else None, more > 0)
    chunks = choices(connection)
    for chunk in chunks:
        assert chunk["token_ids"] and len(chunk["logprobs"]["tokens"]) == len(chunk["token_ids"])
    order = [-value for chunk in chunks for value in chunk["logprobs"]["token_logprobs"]]
    assert order == list(range(len(tokens)))
    offsets = [offset for chunk in chunks for offset in chunk["logprobs"]["text_offset"]]
    assert offsets == sorted(offsets) and offsets[-1] <= len("".join(map(text, chunks)))


def test_an_error_is_the_last_event() -> None:
    completion, connection = stream(1, True, False, "m")
    completion.choices[0].push(5, None)
    completion.choices[0].fail(InternalError())
    _, error, last = connection.written
    assert json.loads(error.removeprefix(b"data: "))["error"]["type"] == "server_error"
    assert last == b"data: [DONE]\n\n" and connection.ended
