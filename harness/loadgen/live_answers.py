"""Answers that go back into later requests: a marker in a body is replaced by the text that was received.

A response is read when it has ended, and only where a later request waits for it: this delays no stamp of
the response, and the person's time to think begins when it has been read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import httptools
import msgspec

from harness.loadgen.load_plan import RawResponse, WireRequest
from harness.loadgen.sse import Content, answer_of, read_events, read_json
from harness.loadgen.typed_events import as_chunk

#: A control character that no prompt has, as it is in text and as JSON writes it.
_IN_TEXT = re.compile(r"\x01answer (\d+)\x01")
_IN_JSON = re.compile(rb"\\u0001answer (\d+)\\u0001")


def answer_marker(index: int) -> str:
    """Make the marker that stands in a prompt for the answer to request `index`."""
    return f"\x01answer {index}\x01"


def fill_text(text: str, answers: Mapping[int, str]) -> str:
    """A text with its markers replaced; an answer that is not there is empty."""
    return _IN_TEXT.sub(lambda match: answers.get(int(match[1]), ""), text)


def fill_body(body: bytes, answers: Mapping[int, bytes]) -> bytes:
    """The same for the body of a request; answers are JSON text without its quotes."""
    return _IN_JSON.sub(lambda match: answers.get(int(match[1]), b""), body)


class _Delta(msgspec.Struct):
    content: Content = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []


_events = msgspec.json.Decoder(_Event)
#: The type of an event of Responses or Messages that has text.
_TYPED = re.compile(rb'"type": ?"(?:response\.output_text\.delta|content_block)')


class _Body:
    """Collects a response's body from httptools."""

    def __init__(self) -> None:
        self.data = bytearray()

    def on_body(self, data: bytes) -> None:
        self.data += data


def answer_text(response: RawResponse) -> str:
    """The text of a streamed answer, without reasoning; what came of it where it broke off."""
    body = _Body()
    parser = httptools.HttpResponseParser(body)
    try:
        for _, data in response.segments:
            parser.feed_data(data)
    except httptools.HttpParserError:
        pass
    parts = []
    for _, data in read_events([(0.0, bytes(body.data))], complete=True):
        try:
            event = read_json(_events, as_chunk(data) if _TYPED.search(data) else data)
        except msgspec.MsgspecError:  # the end of the stream, `[DONE]`, is no JSON
            continue
        parts += [
            choice.text or (answer_of(choice.delta.content) if choice.delta else "")
            for choice in event.choices[:1]
        ]
    return "".join(parts).replace("\x01", "")


def answer_texts(responses: Iterable[RawResponse], indices: Collection[int]) -> dict[int, str]:
    """Return the texts of the answers to these requests that are among the responses, by request."""
    needed = {*indices}
    return {raw.index: answer_text(raw) for raw in responses if raw.index in needed}


class LiveAnswers:
    """The answers that later requests of a client need, as JSON text without its quotes."""

    def __init__(self, requests: Sequence[WireRequest]) -> None:
        self._followers: dict[int, list[WireRequest]] = {}
        for request in requests:
            for index in request.answers:
                self._followers.setdefault(index, []).append(request)
        self._answers: dict[int, bytes] = {}

    def take(self, response: RawResponse) -> Mapping[int, bytes]:
        """Keep an answer that is needed. Returns the bodies of the requests that now have all of theirs."""
        followers = self._followers.get(response.index, ())
        if followers:
            self._answers[response.index] = msgspec.json.encode(answer_text(response))[1:-1]
        return {
            request.index: fill_body(request.body, self._answers)
            for request in followers
            if all(index in self._answers for index in request.answers)
        }
