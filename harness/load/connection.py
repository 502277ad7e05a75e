"""One connection to the server: it sends a request, stamps what comes back, and knows when that ends."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic
from typing import TYPE_CHECKING, cast

import httptools

from harness.load.http import ResponseEnd
from harness.load.plan import ErrorKind, RawResponse

if TYPE_CHECKING:
    from harness.load.client import Client


class Connection(asyncio.Protocol):
    """A kept connection that carries one request at a time.

    While a response arrives, a read costs one clock reading, one append and the parser's look at the framing;
    nothing is decoded.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._end = ResponseEnd()
        self._served = 0
        self._fresh = True
        self._since = 0.0
        self.response: RawResponse | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # Every write goes to the kernel at once, and resume_writing means that all of it is there.
        self.transport.set_write_buffer_limits(high=0)
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, response: RawResponse, request: bytes, *, fresh: bool) -> None:
        """Send `request` and gather what comes back in `response`.

        `fresh` says that the connection was opened for this request; any other may have been closed by the
        peer without our knowing yet.
        """
        self._fresh = fresh
        self._end = ResponseEnd()
        self.response = response
        response.reused = self._served > 0
        self._served += 1
        # Stamped before, not after: the write wakes the server, which may take this very core at once.
        self._since = monotonic()
        self.transport.write(request)
        if self.transport.get_write_buffer_size() == 0:
            response.t_sent = self._since

    def resume_writing(self) -> None:
        if self.response is not None and self.response.t_sent is None:
            self.response.t_sent = monotonic()

    def data_received(self, data: bytes) -> None:
        now = monotonic()
        response = self.response
        if response is None:  # nobody asked: whatever this is, the next answer must not begin with it
            self.transport.abort()
            return
        response.segments.append((now, data))
        try:
            self._end.feed(data)
        except httptools.HttpParserError as error:
            self.fail("protocol", f"not an HTTP response: {error}")
            return
        if self._end.complete:
            self.response = None
            response.t_end = now
            if not self._end.keep_alive:
                self.transport.close()
            self._client.ended(self, response)

    def connection_lost(self, exc: Exception | None) -> None:
        response, self.response = self.response, None
        if response is None:
            self._client.dropped(self)
        elif not response.segments and not self._fresh:
            self._client.retry(self, response)
        else:
            response.t_end = monotonic()
            if exc is not None or not self._end.closed():
                response.error = "disconnected"
                response.detail = str(exc) if exc else "the server closed the connection within the response"
            self._client.ended(self, response)

    def silent_for(self, now: float) -> float:
        """Seconds since the request was begun or, later, since anything was read."""
        segments = self.response.segments if self.response is not None else None
        return now - (segments[-1][0] if segments else self._since)

    def fail(self, kind: ErrorKind, detail: str) -> None:
        """End the response under way as an error and close the connection."""
        response, self.response = self.response, None
        self.transport.abort()
        if response is not None:
            response.t_end = monotonic()
            response.error = kind
            response.detail = detail
            self._client.ended(self, response)
