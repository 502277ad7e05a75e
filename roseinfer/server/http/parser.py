"""Bytes that a client sends to requests, within limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import httptools

from roseinfer.server.http.errors import HttpError

MAX_BODY_BYTES = 32 << 20
MAX_HEAD_BYTES = 64 << 10


@dataclass(slots=True)
class HttpRequest:
    """A request as it came, at the monotonic time `received` (s); header names are in lower case."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytearray
    keep_alive: bool
    chunked: bool
    received: float


class RequestParser:
    """Parses what one connection receives. `on_request` is called with each request, `on_expect` when a
    client asks whether it may send the body."""

    def __init__(self, on_request: Callable[[HttpRequest], None], on_expect: Callable[[], None]) -> None:
        self._on_request, self._on_expect = on_request, on_expect
        self._parser = httptools.HttpRequestParser(self)
        self._head_bytes = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._upgrading = False
        self.began = time.monotonic()

    @property
    def receiving(self) -> bool:
        """Whether a part of a request has come, at `began` (monotonic, s)."""
        return bool(self._url)

    def feed(self, data: bytes) -> None:
        """Take in what came. Raises HttpError where nothing can be read on from it."""
        self._head_bytes += len(data)
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, HttpError):
                raise error.__context__ from None
            raise HttpError(400, f"this is no HTTP request: {error}") from None
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HttpError(431, f"head or trailers are larger than {MAX_HEAD_BYTES} bytes")

    def _parse(self, data: bytes) -> bytes:
        """Returns what is still to parse: the parser takes a request that offers another protocol to have no
        body, so its head is parsed once more without the offer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            return self._head_without_upgrade() + rest if self._upgrading else rest
        return b""

    def _head_without_upgrade(self) -> bytes:
        version = self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, version)]
        lines += [b"%b: %b" % header for header in self._headers.items() if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, bytearray()
        self.began = time.monotonic()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._upgrading = self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"
        if self._upgrading:
            return
        self._head_bytes = -MAX_BODY_BYTES  # what follows is a body, and trailers
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._on_expect()

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > MAX_BODY_BYTES:
            raise HttpError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._head_bytes = 0
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            path=self._url.partition(b"?")[0].decode("latin-1"),
            headers=self._headers,
            body=self._body,
            keep_alive=self._parser.should_keep_alive(),
            chunked=self._parser.get_http_version() != "1.0",
            received=time.monotonic(),
        )
        self._url = b""
        self._on_request(request)
