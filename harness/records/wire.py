"""Stamped bytes to an HTTP response whose body still carries its stamps."""

from __future__ import annotations

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

    def feed(self, now: float, data: bytes) -> None:
        self._now = now
        self._parser.feed_data(data)

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
    parser = _Parser(response)
    for now, data in raw.segments:
        try:
            parser.feed(now, data)
        except httptools.HttpParserError:
            response.complete = False
            break
    return response
