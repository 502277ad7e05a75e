"""Responses of handlers, and the bytes that are written for them (RFC 9112)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from roseinfer.server.http.errors import HttpError

_REASONS = {
    200: b"OK", 400: b"Bad Request", 401: b"Unauthorized",
    403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed",
    408: b"Request Timeout", 409: b"Conflict", 413: b"Content Too Large",
    415: b"Unsupported Media Type", 429: b"Too Many Requests",
    431: b"Request Header Fields Too Large", 500: b"Internal Server Error", 501: b"Not Implemented",
    503: b"Service Unavailable", 505: b"HTTP Version Not Supported",
}  # fmt: skip
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
)


@dataclass(frozen=True)
class Response:
    """A complete response."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(
        self, *, keep_alive: bool, with_body: bool = True, request_id: str = "", old: bool = False
    ) -> bytes:
        """Serialise it. `old`: for a client of HTTP/1.0, which has to learn that a connection stays open."""
        headers = {"content-length": str(len(self.body)), **self.headers}
        if self.body:
            headers["content-type"] = self.content_type
        if not keep_alive:
            headers["connection"] = "close"
        elif old:
            headers["connection"] = "keep-alive"
        if request_id:
            headers["x-request-id"] = request_id
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        status = b"HTTP/1.1 %d %b\r\n" % (self.status, _REASONS[self.status])
        body = self.body if with_body else b""
        return b"".join((status, _date(int(time.time())), lines.encode("latin-1"), b"\r\n", body))


class Producer(ABC):
    """Makes a connection's response. One that sends it piece by piece overrides `pause` and `resume`."""

    def pause(self) -> None:  # noqa: B027
        """Buffer new data: the client does not read fast enough."""

    def resume(self) -> None:  # noqa: B027
        """Send again: the client has read what was written."""

    @abstractmethod
    def close(self) -> None:
        """Stop: the client has gone."""

    @abstractmethod
    def fail(self, error: HttpError) -> None:
        """End the response with `error`."""


#: The response; None if a Producer makes it; or a coroutine that returns either, run in a task.
Answer = Response | None | Coroutine[Any, Any, Response | None]


class JoinedWrites:
    """Joins the writes of each stream of a process: a write is a system call, which costs more than all else
    about a token."""

    def __init__(self) -> None:
        self.active = False
        self.streams: list[EventStream] = []  # with pieces that wait

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Send what each stream writes within this context in one write, at the context's end or the
        stream's."""
        self.active = True
        try:
            yield
        finally:
            self.active = False
            streams, self.streams = self.streams, []
            for stream in streams:
                stream.flush()


class EventStream:
    """The body of one event stream, in chunked transfer coding (RFC 9112, 7.1) unless it ends with its
    connection, as in HTTP/1.0."""

    __slots__ = ("_chunked", "_joined", "_pieces", "_write")

    def __init__(self, write: Callable[[bytes], None], joined: JoinedWrites, *, chunked: bool) -> None:
        self._write, self._joined, self._chunked = write, joined, chunked
        self._pieces: list[bytes] = []  # until they are written together

    def begin(self, event: bytes, *, keep_alive: bool, request_id: str) -> None:
        """Write the response's head and its first event."""
        close = b"" if keep_alive else b"connection: close\r\n"
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        id = b"x-request-id: %b\r\n" % request_id.encode()
        head = _STREAM_HEAD + _date(int(time.time())) + id + close + framing + b"\r\n"
        self._write(head + self._frame(event))

    def write(self, event: bytes) -> None:
        """Write the next event."""
        if self._joined.active:
            if not self._pieces:
                self._joined.streams.append(self)
            self._pieces.append(self._frame(event))
        else:
            self._write(self._frame(event))

    def flush(self) -> None:
        """Write the pieces that wait."""
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._write(data)

    def end(self, events: Iterable[bytes]) -> None:
        """Write the last events."""
        self._pieces += map(self._frame, events)
        if self._chunked:
            self._pieces.append(b"0\r\n\r\n")
        self.flush()

    def drop(self) -> None:
        """Write nothing any more: the client has gone."""
        self._pieces.clear()
        self._write = write_nothing

    def _frame(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data


def write_nothing(data: bytes) -> None:
    """Discard `data`: the write function of a closed connection."""


@lru_cache(1)
def _date(second: int) -> bytes:
    return b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
