"""Answers as server-sent events: the path that every streamed token takes.

Most tokens take the short way through `StreamedAnswer.push`: one look-up of the token's text, one `%` of a
chunk made beforehand, one write.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import Finished
from roseinfer.server.http.errors import HttpError
from roseinfer.server.openai.choice import Answer
from roseinfer.server.openai.completion import Reply
from roseinfer.server.openai.requests import StreamOptions
from roseinfer.server.openai.responses import Choice, UsageField

_encode = msgspec.json.Encoder().encode

#: Stand for a chunk's text and its token id where its changing parts are cut out.
_TEXT, _ID = "\x00text\x00", 2**63 - 25


class StreamReply(Reply):
    """The event stream of one request: a chunk for every choice and `stream_interval` tokens.

    While the client does not read, tokens are kept and leave together in one chunk when it reads again: a
    slow client costs memory for its tokens and no more.
    """

    def _receiver(self, index: int, answer: Answer) -> StreamedAnswer:
        if index == 0:
            self.paused = self._connection.paused
            self._options = self._request.stream_options or StreamOptions()
            self._receivers: list[StreamedAnswer] = []
            self._write: Callable[[bytes], None] | None = None
        interval = self._backend.stream_interval
        receiver = StreamedAnswer(self, index, answer, interval, self._request.return_token_ids)
        self._receivers.append(receiver)
        return receiver

    def begin(self) -> Callable[[bytes], None]:
        """What writes events; the first call sends the response's head."""
        if self._write is None:
            self._write = self._connection.begin_stream()
        return self._write

    def event(self, choice: Choice, *, first: bool) -> bytes:
        """What adds `choice` to its answer."""
        usage: UsageField = None if self._options.include_usage else msgspec.UNSET
        if self._options.continuous_usage_stats:
            usage = self.usage()
        return _event(self._shape.chunk([choice], usage, first=first))

    @property
    def same_chunks(self) -> bool:
        """Whether chunks differ in nothing but text and token ids."""
        return not self._options.continuous_usage_stats

    def finished(self, choice: Choice, end: Finished | None, *, first: bool) -> None:
        """Send the last chunk of a choice, and after the last choice the end of the stream."""
        self.note(choice, end)
        write = self.begin()
        write(self.event(choice, first=first))
        self._open -= 1
        if not self._open:
            if self._options.include_usage:
                write(_event(self._shape.chunk([], self.usage())))
            self._end()

    def fail(self, error: HttpError) -> None:
        """End all answers with `error`."""
        if not self._open:
            return
        self._open = 0
        self.close()
        if self._write is None:
            self._connection.respond(error.response())
        else:
            self._write(_event(error.body))
            self._end()

    def _end(self) -> None:
        self.begin()(_event(b"[DONE]"))
        self._connection.end_stream()

    def pause(self) -> None:
        self.paused = True
        for receiver in self._receivers:
            receiver.short_way = False

    def resume(self) -> None:
        self.paused = False
        for receiver in self._receivers:
            receiver.flush()


class StreamedAnswer:
    """Sends one choice. `short_way`: nothing is held back, so that a token is a chunk by itself."""

    __slots__ = (
        "_answer", "_begun", "_escaped", "_held", "_ids", "_index", "_interval", "_reply", "_template",
        "_uniform", "_with_ids", "_write", "short_way",
    )  # fmt: skip

    def __init__(self, reply: StreamReply, index: int, answer: Answer, interval: int, with_ids: bool) -> None:
        self._reply, self._index, self._answer = reply, index, answer
        self._interval, self._with_ids = interval, with_ids
        self._escaped = answer.text.escaped
        self._held = ""
        self._ids: list[int] = []
        plain = not answer.stops.stops and answer.logprobs is None
        self._uniform = interval == 1 and plain and reply.same_chunks
        self._template = b""
        self._begun = self.short_way = False

    def begin(self, begun: Finished) -> None:
        self._answer.begin(begun)

    def tell(self, logprobs: TokenLogprobs) -> None:
        self._answer.tell(logprobs)

    def push(self, token: int, end: Finished | None) -> None:
        if self.short_way and end is None:
            text = self._escaped[token]
            if text is not None:
                self._answer.tokens += 1
                self._write(self._template % ((text, token) if self._with_ids else text))
                return
        self._long_way(token, end)

    def _long_way(self, token: int, end: Finished | None) -> None:
        answer, reply = self._answer, self._reply
        text, reason = answer.extend(token, end)
        self._held += text
        self._ids.append(token)
        if reason is not None:
            self.short_way = False
            if end is None:
                end = reply.stop(self._index)
            reply.finished(self._take(reason), end, first=not self._begun)
        elif not reply.paused and (answer.tokens == 1 or len(self._ids) >= self._interval):
            self.flush()

    def flush(self) -> None:
        """Send what is held back, and see whether the short way is open again."""
        if not self._ids:
            return
        self._write = self._reply.begin()
        self._write(self._reply.event(self._take(None), first=not self._begun))
        self._begun = True
        self.short_way = self._uniform and self._answer.text.clean
        if self.short_way and not self._template:
            self._template = self._make_template()

    def fail(self, error: HttpError) -> None:
        self._reply.fail(error)

    def _take(self, reason: str | None) -> Choice:
        choice = Choice(self._index, self._held, self._answer.take_logprobs(), reason)
        if self._with_ids:
            choice.token_ids = self._ids
        self._held, self._ids = "", []
        return choice

    def _make_template(self) -> bytes:
        """A chunk with `%b` for its text, and `%d` for its token id where ids are asked for."""
        choice = Choice(self._index, _TEXT, None, None)
        if self._with_ids:
            choice.token_ids = [_ID]
        chunk = self._reply.event(choice, first=False).replace(b"%", b"%%")
        head, tail = chunk.rsplit(_encode(_TEXT)[1:-1], 1)
        return head + b"%b" + tail.replace(b"%d" % _ID, b"%d")


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
