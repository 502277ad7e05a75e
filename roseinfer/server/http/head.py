"""Checks of a request's head (RFC 9112)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from roseinfer.server.http.errors import HttpError

MAX_HEAD_BYTES = 64 << 10
#: Headers that may appear once only. They say where a request ends, or its host: two of them are ambiguous
#: (request smuggling).
ONCE = frozenset({b"host", b"content-length", b"transfer-encoding"})
VERSIONS = frozenset({"1.0", "1.1"})
_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::\d*)?")
_ABSOLUTE = re.compile(rb"https?://([^/?]*)([^?]*)", re.IGNORECASE)


def path_of(url: bytes, headers: dict[bytes, bytes]) -> str:
    """The path that a request's target names. A target in absolute form also names the host, which replaces
    the one in `headers`. Raises HttpError (400)."""
    if absolute := _ABSOLUTE.match(url):
        host, path = absolute.groups()
        if not host:
            raise HttpError(400, "the request names no host")
        headers[b"host"] = host
        return path.decode("latin-1") or "/"
    return url.partition(b"?")[0].decode("latin-1")


def check(method: bytes, version: str, size: int, headers: Mapping[bytes, bytes]) -> None:
    """Raise HttpError for a head of `size` bytes that is too large, or that other parsers might read
    differently."""
    if version not in VERSIONS:
        raise HttpError(505, f"HTTP/{version:.5} is not spoken here; use HTTP/1.1")
    if method == b"CONNECT":
        raise HttpError(400, "this server is no proxy")
    if size > MAX_HEAD_BYTES:
        raise HttpError(431, f"the head is larger than {MAX_HEAD_BYTES} bytes")
    host = headers.get(b"host")
    if host is None and version != "1.0":
        raise HttpError(400, "the Host header is missing")
    if host is not None and not _HOST.fullmatch(host):
        raise HttpError(400, "the Host header is no name of a host")
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if version == "1.0":
            raise HttpError(400, "HTTP/1.0 has no transfer-encoding")
        if coding.strip().lower() != b"chunked":
            raise HttpError(501, "the one transfer-encoding that is understood is chunked")
