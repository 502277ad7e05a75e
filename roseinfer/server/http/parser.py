"""Parses the bytes that a client sends into requests, within limits."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httptools

from roseinfer.server.http.buffers import Account
from roseinfer.server.http.errors import HttpError

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 32 << 20
MAX_HEADERS = 128
#: Bytes of trailers, which are not used, and of one chunk's size line.
MAX_TRAILER_BYTES = 8 << 10
#: Valid values of x-request-id.
_REQUEST_ID = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)
#: Headers that may appear once only. They say where a request ends, or its host: two of them are ambiguous
#: (request smuggling).
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding"})
_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::\d*)?")
_ABSOLUTE = re.compile(rb"https?://([^/?]*)([^?]*)", re.IGNORECASE)


@dataclass(slots=True)
class HttpRequest:
    """A request; header names are in lower case.

    `received`: when it was complete (monotonic, s). `id`: the client's x-request-id, or a new one. `chunked`:
    the client speaks HTTP/1.1 and so takes chunked bodies. `held_bytes`: those that count towards the budget.
    With a `refusal`, its body was dropped.
    """

    method: str
    path: str
    headers: dict[bytes, bytes]
    keep_alive: bool
    chunked: bool
    body: bytearray = field(default_factory=bytearray)
    received: float = 0.0
    held_bytes: int = 0
    refusal: HttpError | None = None
    id: str = ""

    def take_body(self) -> bytearray:
        """Remove the body and return it."""
        body, self.body = self.body, bytearray()
        return body


class RequestParser:
    """Parses what one connection receives.

    Args:
        on_request: called with each complete request.
        on_expect: called when a client asks whether it may send the body.
        admit: returns the error for a request that is refused by its head, whose body is then dropped.
        account: counts the bytes that are held.
    """

    def __init__(
        self,
        on_request: Callable[[HttpRequest], None],
        on_expect: Callable[[], None],
        admit: Callable[[HttpRequest], HttpError | None],
        account: Account,
    ) -> None:
        self._on_request, self._on_expect, self._admit, self._account = on_request, on_expect, admit, account
        self._parser = httptools.HttpRequestParser(self)
        self._request: HttpRequest | None = None  # its head has come, its body has not
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._upgrading = False
        self._head_bytes = self._body_bytes = self._trailer_bytes = 0
        self._held_of_head = 0  # of a head that has not come completely
        self._framing = 0  # bytes of a body that are not content, less its content, at most
        self._outside = 0  # bytes since its last content, at most
        self.began = time.monotonic()

    @property
    def receiving(self) -> bool:
        """True if a part of a request has arrived, since `began` (monotonic, s)."""
        return bool(self._url)

    def close(self) -> None:
        """Forget everything. The parser refers to this object: without this, only the garbage collector would
        free what it holds."""
        self._parser = self._on_request = self._on_expect = self._admit = None  # type: ignore[assignment]
        self._request, self._url, self._headers = None, b"", {}

    def feed(self, data: bytes) -> None:
        """Parse received data, a piece of some KiB. Raises HttpError where nothing after it can be parsed."""
        size = len(data)
        self._head_bytes += size
        self._framing += size
        self._outside += size
        if not self.receiving and data.partition(b"\n")[0].count(b" ") > 2:
            raise HttpError(400, "this is no HTTP request: its first line has more than two spaces")
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, HttpError):
                raise error.__context__ from None
            raise HttpError(400, f"this is no HTTP request: {error}") from None
        if self._request is None:
            if self._head_bytes > MAX_HEAD_BYTES:
                raise HttpError(431, f"the head is larger than {MAX_HEAD_BYTES} bytes")
            if self.receiving:
                self._account.hold(self._head_bytes - self._held_of_head)
                self._held_of_head = self._head_bytes
                self._account.check()
        elif self._outside > MAX_TRAILER_BYTES or self._framing > MAX_HEAD_BYTES:
            raise HttpError(431, f"trailers are larger than {MAX_TRAILER_BYTES} bytes, or chunks too small")

    def _parse(self, data: bytes) -> bytes:
        """Return the rest that is still to be parsed: httptools ends a request with an `upgrade` header at
        its head, so the head is parsed again without this header."""
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
        self._request, self._url, self._headers = None, b"", {}
        self._body_bytes = self._trailer_bytes = 0
        self.began = time.monotonic()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is not None:  # a trailer: nobody may rely on it, so it is not kept
            self._trailer_bytes += len(name) + len(value) + 4
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                raise HttpError(431, f"trailers are larger than {MAX_TRAILER_BYTES} bytes")
            return
        name = name.lower()
        if name in _ONCE and name in self._headers:
            raise HttpError(400, f"two {name.decode()} headers")
        self._headers[name] = value
        if len(self._headers) > MAX_HEADERS:
            raise HttpError(431, f"more than {MAX_HEADERS} headers")

    def on_headers_complete(self) -> None:
        method, version, headers = self._parser.get_method(), self._parser.get_http_version(), self._headers
        self._account.hold(-self._held_of_head)
        self._held_of_head = 0
        path = _path_of(self._url, headers)
        size = len(self._url) + sum(map(len, headers)) + sum(map(len, headers.values()))
        _check_head(method, version, size, headers)
        self._upgrading = self._parser.should_upgrade()
        if self._upgrading:
            return
        self._framing = self._outside = 0
        self._request = request = HttpRequest(
            method=method.decode("latin-1"),
            path=path,
            headers=headers,
            keep_alive=self._parser.should_keep_alive(),
            chunked=version != "1.0",
            id=_request_id(headers.get(b"x-request-id", b"")),
        )
        length = int(headers.get(b"content-length", b"0"))
        self._check_body(length)
        request.refusal = self._admit(request)
        if request.refusal is None:
            self._hold(request, size)
            self._account.check(length)
        if request.chunked and headers.get(b"expect", b"").lower() == b"100-continue":
            if request.refusal is not None:
                raise request.refusal
            self._on_expect()

    def on_body(self, body: bytes) -> None:
        request = self._request
        assert request is not None
        self._outside = 0
        self._framing -= 2 * len(body)  # what is not content may be as much as the content
        self._body_bytes += len(body)
        self._check_body(self._body_bytes)
        if request.refusal is None:
            request.body += body
            self._hold(request, len(body))
            self._account.check()

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        request, self._request, self._url, self._headers = self._request, None, b"", {}
        assert request is not None
        self._head_bytes = 0
        request.received = time.monotonic()
        self._on_request(request)

    def _hold(self, request: HttpRequest, size: int) -> None:
        request.held_bytes += size
        self._account.hold(size)

    def _check_body(self, size: int) -> None:
        if size > MAX_BODY_BYTES:
            raise HttpError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")


def _request_id(header: bytes) -> str:
    return header.decode() if _REQUEST_ID.fullmatch(header) else f"{random.getrandbits(128):032x}"


def _path_of(url: bytes, headers: dict[bytes, bytes]) -> str:
    """Return the path of a request's target. A target in absolute form also names the host, which replaces
    the one in `headers`. Raises HttpError (400)."""
    if absolute := _ABSOLUTE.match(url):
        host, path = absolute.groups()
        if not host:
            raise HttpError(400, "the request names no host")
        headers[b"host"] = host
        return path.decode("latin-1") or "/"
    return url.partition(b"?")[0].decode("latin-1")


def _check_head(method: bytes, version: str, size: int, headers: Mapping[bytes, bytes]) -> None:
    """Raise HttpError for a head of `size` bytes that is too large, or that other parsers might read
    differently."""
    if version not in ("1.0", "1.1"):
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
