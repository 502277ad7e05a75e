"""Stamped bytes to an HTTP response whose body still carries its stamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import httptools

from harness.loadgen.load_plan import RawResponse


@dataclass(slots=True)
class WireResponse:
    """A response: header names in lower case, body pieces each with the time of the read that brought it.

    `status` is None when no response head came, `t_head` when it was there. `complete` says that the response
    ended as HTTP wants it.
    """

    status: int | None = None
    t_head: float | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: list[tuple[float, bytes]] = field(default_factory=list)
    complete: bool = False


class _Parser:
    """Callbacks of httptools. A 1xx response announces the one that counts."""

    def __init__(self, response: WireResponse) -> None:
        self._response = response
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0

    def feed(self, segments: Sequence[tuple[float, bytes]]) -> None:
        feed = self._parser.feed_data
        for self._now, data in segments:
            feed(data)

    def on_message_begin(self) -> None:
        self._response.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._response.status = self._parser.get_status_code()
        self._response.t_head = self._now

    def on_body(self, data: bytes) -> None:
        self._response.body.append((self._now, data))


def read_wire(raw: RawResponse) -> WireResponse:
    """Undo HTTP's framing. What is not HTTP ends the body; the client has said so in `raw.error`."""
    response = WireResponse(complete=raw.error is None)
    try:
        _Parser(response).feed(raw.segments)
    except httptools.HttpParserError:
        response.complete = False
    return response
