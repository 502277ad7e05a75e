"""Serialises responses, and the heads and chunks of event streams."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache

from roseinfer.server.http.response import Response

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
#: The end of a chunked body.
LAST_CHUNK = b"0\r\n\r\n"


def whole(
    response: Response, *, keep_alive: bool, with_body: bool, request_id: str = "", old: bool = False
) -> bytes:
    """A whole response. `old`: to a client of HTTP/1.0, which has to learn that a connection stays open."""
    headers = {"content-length": str(len(response.body)), **response.headers}
    if response.body:
        headers["content-type"] = response.content_type
    if not keep_alive:
        headers["connection"] = "close"
    elif old:
        headers["connection"] = "keep-alive"
    if request_id:
        headers["x-request-id"] = request_id
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    status = b"HTTP/1.1 %d %b\r\n" % (response.status, _REASONS[response.status])
    body = response.body if with_body else b""
    return b"".join((status, _date(), lines.encode("latin-1"), b"\r\n", body))


def stream_head(*, keep_alive: bool, chunked: bool, request_id: str) -> bytes:
    """The head of a stream's response."""
    close = b"" if keep_alive else b"connection: close\r\n"
    framing = b"transfer-encoding: chunked\r\n" if chunked else b""
    id = b"x-request-id: %b\r\n" % request_id.encode()
    return _STREAM_HEAD + _date() + id + close + framing + b"\r\n"


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _date() -> bytes:
    return _date_of(int(time.time()))


@lru_cache(1)
def _date_of(second: int) -> bytes:
    return b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
