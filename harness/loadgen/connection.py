"""One connection to the server: sends a request, stamps the response, and detects its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic
from typing import Protocol

import httptools

from harness.loadgen.http import ResponseEnd
from harness.loadgen.load_plan import ErrorKind, RawResponse

#: Memory that a read takes beside its bytes: a tuple, a float, the head of an object, a place in a list.
READ_BYTES = 128
#: Memory that a response takes at a time, and that its head may take.
STEP_BYTES, HEAD_BYTES = 16 << 10, 256 << 10

#: A peer that closed a kept connection before the request came is known of within one round trip. One that
#: hangs up later had the request.
STALE_S = 0.25

#: Called with a response whenever more of it has come; True: the client leaves, without waiting for its end.
Watch = Callable[[RawResponse], bool]


class Owner(Protocol):
    """Receives the events of a connection."""

    def reserve(self, size: int) -> bool:
        """Take so many bytes of memory, which `ended` gives back; False where no more are left."""

    def ended(self, connection: Connection, response: RawResponse) -> None:
        """Called when the response is over."""

    def retry(self, connection: Connection, response: RawResponse) -> None:
        """A reused connection broke just after the request, before the first byte of the response."""

    def dropped(self, connection: Connection) -> None:
        """The peer closed it while it was not in use."""


class Connection(ABC):
    """A persistent connection for one request at a time; its bytes are moved by `TcpConnection` or
    `TlsConnection`.

    While a response arrives, a read costs its stamp, one append and the parser's look at the framing; nothing
    is decoded. `last_event` is when the request was begun or, later, when the latest bytes arrived;
    `rested_s` is how long the connection was not in use before the latest of its `served` requests. `route`
    is the place of its target among all addresses.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.route = 0
        self._end: ResponseEnd
        self.served = 0
        self._fresh = True
        self._since = self.last_event = self.rested_s = 0.0
        self._bytes = self.reserved = self._most_bytes = 0
        self.response: RawResponse | None = None
        self.watch: Watch | None = None

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Nothing more can be sent."""

    @abstractmethod
    def close(self) -> None:
        """Close it at once, without further events."""

    @abstractmethod
    def write(self, data: bytes) -> bool:
        """Pass `data` to the kernel; False if some has to wait: `written` follows. Raises nothing."""

    def send(self, response: RawResponse, request: bytes, most_bytes: int, *, fresh: bool) -> None:
        """Send `request` and gather what comes back in `response`, which may take `most_bytes` of memory.

        `fresh` says that the connection was opened for this request; any other may have been closed by the
        peer without our knowing yet.
        """
        self._fresh = fresh
        self._end = ResponseEnd()
        self._bytes, self.reserved, self._most_bytes = 0, 0, most_bytes
        self.response = response
        response.reused = self.served > 0
        self.served += 1
        # Stamped before, not after: the write wakes the server, which may take this very core at once.
        self._since = monotonic()
        self.rested_s, self.last_event = self._since - self.last_event, self._since
        if self.write(request) and response.t_sent is None:
            response.t_sent = self._since

    def written(self) -> None:
        """The kernel has taken all that was written, after some of it had to wait."""
        if self.response is not None and self.response.t_sent is None:
            self.response.t_sent = monotonic()

    def received(self, at: float, data: bytes) -> None:
        """`data` arrived `at` (CLOCK_MONOTONIC seconds)."""
        response = self.response
        if response is None:  # no request is open: the next response must not begin with these bytes
            self.close()
            self._owner.dropped(self)
            return
        self.last_event = at
        response.segments.append((at, data))
        if self.watch is not None and self.watch(response):
            self.fail("disconnected", "the client left")
            return
        self._bytes += len(data) + READ_BYTES
        end = self._end
        try:
            end.feed(data)
        except httptools.HttpParserError as error:
            self.fail("protocol", f"not an HTTP response: {error}")
            return
        if end.complete:
            self.response = None
            end.release()
            response.t_end = at
            if not end.keep_alive:
                self.close()
            self._owner.ended(self, response)
        elif self._bytes > self.reserved:
            self._reserve()

    def _reserve(self) -> None:
        """Take memory for what has arrived and some of what follows; fail where there may not be so much."""
        if self._bytes > HEAD_BYTES and not self._end.headers_done:
            self.fail("protocol", f"the head of the answer is over {HEAD_BYTES >> 10} KiB")
        elif self._bytes > self._most_bytes:
            self.fail("protocol", f"the answer is over {self._most_bytes / (1 << 20):.3g} MiB")
        else:
            step = self._bytes - self.reserved + STEP_BYTES
            self.reserved += step
            if not self._owner.reserve(step):
                self.fail("memory", "the answers in flight take more than --max-memory")

    def lost(self, error: Exception | None) -> None:
        """The peer closed the connection, properly where `error` is None."""
        response, self.response = self.response, None
        self.close()
        if response is None:
            self._owner.dropped(self)
        elif not response.segments and not self._fresh and monotonic() - self._since < STALE_S:
            self._owner.retry(self, response)
        else:
            response.t_end = monotonic()
            self._end.release()
            if error is not None or not self._end.closed():
                response.error = "disconnected"
                response.detail = (
                    str(error) if error else "the server closed the connection within the response"
                )
            self._owner.ended(self, response)

    def overdue(self, now: float, silence_s: float, total_s: float) -> str | None:
        """Return the reason to give the response up at `now`: too long a silence, or too long in all; else
        None."""
        if now - self.last_event > silence_s:
            return f"no byte for {silence_s:g} s"
        if now - self._since > total_s:
            return f"not complete after {total_s:g} s"
        return None

    def fail(self, kind: ErrorKind, detail: str) -> None:
        """End the current response with an error and close the connection."""
        response, self.response = self.response, None
        self.close()
        if response is not None:
            self._end.release()
            response.t_end = monotonic()
            response.error = kind
            response.detail = detail
            self._owner.ended(self, response)
