"""Answers that go back into later requests: a marker in a body is replaced by the text that was received.

A response is read when it has ended, and only where a later request waits for it: this delays no stamp of
the response, and the person's time to think begins when it has been read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import httptools
import msgspec

from harness.loadgen.load_plan import RawResponse, WireRequest
from harness.loadgen.sse import Content, Function, answer_of, read_events, read_json
from harness.loadgen.typed_events import GENERATED, as_chunk

#: A control character that no prompt has, as it is in text and as JSON writes it.
_IN_TEXT = re.compile(r"\x01(?:answer (\d+)|call (\d+)\.(\d+) ([^|]*)\|(.*?))\x01", re.DOTALL)
_IN_JSON = re.compile(rb"\\u0001(?:answer (\d+)|call (\d+)\.(\d+) ([^|]*)\|(.*?))\\u0001", re.DOTALL)
#: Arguments of a tool call that are an object and not its text, as Anthropic's Messages have them.
_AS_OBJECT = re.compile(rb'("input":)("\\u0001.*?\\u0001")', re.DOTALL)
#: An empty text, which they refuse.
_NO_TEXT = b'{"type":"text","text":""},'


class LiveAnswer(msgspec.Struct):
    """Text of an answer, without reasoning, and its tool calls: names and arguments."""

    text: str = ""
    calls: list[tuple[str, str]] = []


NO_ANSWER = LiveAnswer()


def answer_marker(index: int) -> str:
    """Make the marker that stands in a prompt for the answer to request `index`."""
    return f"\x01answer {index}\x01"


def call_marker(index: int, number: int, recorded: Mapping[str, str]) -> str:
    """Make the marker for the arguments of a tool call in the answer to request `index`.

    Those of the `recorded` function stay where the answer's call at that place is of no such function: the
    results that were recorded need a call before them.
    """
    return f"\x01call {index}.{number} {recorded['name']}|{recorded['arguments']}\x01"


def _filling(found: Sequence[str], answers: Mapping[int, LiveAnswer]) -> str | None:
    """Return what stands for a marker, by its groups; None: what it has of the record."""
    answer, call, number, name, _ = found
    if answer:
        return answers.get(int(answer), NO_ANSWER).text
    made = answers.get(int(call), NO_ANSWER).calls[int(number) :][:1]
    return made[0][1] if made and made[0][0] == name else None


def fill_text(text: str, answers: Mapping[int, LiveAnswer]) -> str:
    """A text with its markers replaced; an answer that is not there is empty."""

    def filled(match: re.Match[str]) -> str:
        text = _filling(match.groups(""), answers)
        return match[5] if text is None else text

    return _IN_TEXT.sub(filled, text)


def fill_body(body: bytes, answers: Mapping[int, LiveAnswer]) -> bytes:
    """The same for the body of a request, which is JSON."""

    def as_object(match: re.Match[bytes]) -> bytes:
        marker = msgspec.json.decode(match[2], type=str)
        for arguments in (fill_text(marker, answers).encode(), fill_text(marker, {}).encode()):
            with suppress(msgspec.MsgspecError):  # no whole object
                read_json(_objects, arguments)
                return match[1] + arguments
        return match[1] + b"{}"

    def filled(match: re.Match[bytes]) -> bytes:
        text = _filling([group.decode() for group in match.groups(b"")], answers)
        return match[5] if text is None else msgspec.json.encode(text)[1:-1]

    return _IN_JSON.sub(filled, _AS_OBJECT.sub(as_object, body)).replace(_NO_TEXT, b"")


class _ToolCall(msgspec.Struct):
    index: Any = 0
    function: Function | None = None


class _Delta(msgspec.Struct):
    content: Content = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []


_events, _objects = msgspec.json.Decoder(_Event), msgspec.json.Decoder(dict)
#: The type of an event of Responses or Messages that has text or a part of a tool call.
_TYPED = re.compile(
    rb'"type": ?"(?:response\.(?:output_text\.delta|output_item\.added|function_call_arguments\.delta)'
    rb"|content_block)"
)


def read_answer(response: RawResponse) -> LiveAnswer:
    """Read a streamed answer; what came of it where it broke off."""
    body: list[bytes] = []
    parser = httptools.HttpResponseParser(SimpleNamespace(on_body=body.append))
    try:
        for _, data in response.segments:
            parser.feed_data(data)
    except httptools.HttpParserError:
        pass
    parts: list[str] = []
    calls: dict[Any, list[str]] = {}
    for _, data in read_events([(0.0, b"".join(body))], complete=True):
        try:
            other = GENERATED in data or _TYPED.search(data)
            event = read_json(_events, as_chunk(data) if other else data)
        except msgspec.MsgspecError:  # the end of the stream, `[DONE]`, is no JSON
            continue
        for choice in event.choices[:1]:
            parts.append(choice.text or (answer_of(choice.delta.content) if choice.delta else ""))
            for call in (choice.delta and choice.delta.tool_calls) or ():
                if call.function is not None:
                    made = calls.setdefault(call.index, ["", ""])
                    made[0] += call.function.name or ""
                    made[1] += call.function.arguments or ""
    called = [(name, arguments.replace("\x01", "")) for name, arguments in calls.values()]
    return LiveAnswer("".join(parts).replace("\x01", ""), called)


def read_answers(responses: Iterable[RawResponse], indices: Collection[int]) -> dict[int, LiveAnswer]:
    """Return the answers to these requests that are among the responses, by request."""
    needed = {*indices}
    return {raw.index: read_answer(raw) for raw in responses if raw.index in needed}


class LiveAnswers:
    """The answers that later requests of a client need."""

    def __init__(self, requests: Sequence[WireRequest]) -> None:
        self._followers: dict[int, list[WireRequest]] = {}
        for request in requests:
            for index in request.answers:
                self._followers.setdefault(index, []).append(request)
        self._answers: dict[int, LiveAnswer] = {}

    def take(self, response: RawResponse) -> Mapping[int, bytes]:
        """Keep an answer that is needed. Returns the bodies of the requests that now have all of theirs."""
        followers = self._followers.get(response.index)
        if followers is None:
            return {}
        self._answers[response.index] = read_answer(response)
        return {
            request.index: fill_body(request.body, self._answers)
            for request in followers
            if all(index in self._answers for index in request.answers)
        }
