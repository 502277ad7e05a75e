"""The answer to one HTTP request as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.request.params import Finished
from roseinfer.server.http.errors import HttpError
from roseinfer.server.openai.completion import Choice, Completion
from roseinfer.server.openai.requests import StreamOptions
from roseinfer.server.openai.responses import (
    ChoiceBody,
    UsageField,
    error_body,
    error_response,
)

_encode = msgspec.json.encode
#: Placeholders from which a chunk's changing parts are cut out.
_TEXT, _ID = "\x00text\x00", 2**63 - 25


class StreamedChoice(Choice):
    """Sends the text of its tokens, every `stream_interval` tokens.

    `begun`: its first chunk is sent. `direct`: nothing is buffered, and a token that is whole characters is
    put into a template of a chunk.
    """

    __slots__ = ("_escaped", "_interval", "_stream", "_template", "_write", "begun", "direct", "uniform")

    def __init__(self, index: int, prompt: NDArray[np.int32], stream: StreamedCompletion) -> None:
        super().__init__(index, prompt, stream)
        self._stream, self._interval = stream, stream.backend.stream_interval
        self._escaped = self._text.escaped
        plain = not self._stops.stops and self._logprobs is None and self._calls is None
        self.uniform = self._interval == 1 and plain and not stream.options.continuous_usage_stats
        self._template = b""
        self.begun = self.direct = False

    def push(self, token: int, end: Finished | None, more: bool = False) -> None:
        if more:  # the chunk has them too
            self.direct = False
        if self.direct and end is None:
            text = self._escaped[token]
            if text is not None:
                self.tokens += 1
                self._write(self._template % ((text, token) if self._with_ids else text))
                return
        reason = self._add(token, end)
        if reason is not None:
            self.direct = False
            self._stream.end_choice(self, reason, end)
        elif (
            not more and not self._stream.paused and (self.tokens == 1 or len(self._texts) >= self._interval)
        ):
            self.flush()

    def flush(self) -> None:
        """Send the buffered tokens, and check whether later ones can be sent directly."""
        if not self._texts:
            return
        self._write = self._stream.send(self._stream.event(self.take(None), first=not self.begun))
        self.begun = True
        # Sending may have paused it.
        self.direct = self.uniform and self._text.clean and not self._stream.paused
        if self.direct and not self._template:
            self._template = self._make_template()

    def _make_template(self) -> bytes:
        """Return a chunk with `%b` for its text, and `%d` for its token id if ids are asked for."""
        body = ChoiceBody(self.index, _TEXT, None, None)
        if self._with_ids:
            body.token_ids = [_ID]
        chunk = self._stream.event(body, first=False).replace(b"%", b"%%")
        head, tail = chunk.rsplit(_encode(_TEXT)[1:-1], 1)
        return head + b"%b" + tail.replace(b"%d" % _ID, b"%d")


class StreamedCompletion(Completion):
    """A chunk for every choice and `stream_interval` tokens.

    While the client does not read, tokens are buffered, and sent in one chunk when it reads again: a slow
    client costs no more than the memory of its tokens.
    """

    choice_kind = StreamedChoice
    paused = False
    choices: list[StreamedChoice]  # type: ignore[assignment]
    _write: Callable[[bytes], None] | None = None

    def send(self, event: bytes) -> Callable[[bytes], None]:
        """Write `event`, the first with the response's head. Returns the function that writes the next."""
        if self._write is None:
            self._write = self._connection.begin_stream(event)
        else:
            self._write(event)
        return self._write

    def event(self, body: ChoiceBody, *, first: bool) -> bytes:
        """Return the event that adds `body` to its choice."""
        usage: UsageField = None if self.options.include_usage else msgspec.UNSET
        if self.options.continuous_usage_stats:
            usage = self.usage()
        return _event(self.format.chunk([body], usage, first=first))

    @property
    def options(self) -> StreamOptions:
        """Options of the stream."""
        return self.generation.stream or StreamOptions()

    def pause(self) -> None:
        """Buffer tokens from now on."""
        self.paused = True
        for choice in self.choices:
            choice.direct = False

    def resume(self) -> None:
        """Send the buffered tokens."""
        self.paused = False
        for choice in self.choices:
            if self.paused:  # again, by what was sent
                break
            choice.flush()

    def _send_choice(self, choice: Choice, body: ChoiceBody, *, last: bool) -> None:
        event = self.event(body, first=not self.choices[choice.index].begun)
        if not last:
            self.send(event)
        elif self.options.include_usage:
            self._end(event, _event(self.format.chunk([], self.usage())))
        else:
            self._end(event)

    def _send_error(self, error: HttpError) -> None:
        if self._write is None:
            self._connection.respond(error_response(error))
        else:
            self._end(_event(error_body(error)))

    def _end(self, *events: bytes) -> None:
        self._forget()
        if self._write is None:
            first, *events = events  # type: ignore[assignment]
            self.send(first)
        self._connection.end_stream(*events, _DONE)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


_DONE = _event(b"[DONE]")
