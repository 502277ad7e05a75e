"""HTTP/2 for servers that speak nothing else, as HTTP/1.1 for everyone who writes or reads bytes here.

The package h2 has the protocol. A connection has one request at a time, as with HTTP/1.1. Each read costs the
package's parsing of its frames, which HTTP/1.1 does without: stamps are taken before that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, WindowUpdated
from h2.exceptions import ProtocolError

from harness.loadgen.http import Http2Error

#: Bytes that a server may send before they are acknowledged: so many that no answer waits for it.
WINDOW = (1 << 31) - 1 - 65_535
#: Of HTTP/1.1 alone (RFC 9113, 8.2.2).
_NOT_SENT = ("host", "connection", "content-length", "transfer-encoding")
#: Bytes before the payload of a frame, and the type of that which ends a connection (RFC 9113, 4.1, 6.8).
_HEAD, _GOAWAY = 9, 7


class Http2Bytes:
    """One connection: requests in HTTP/1.1 become frames, and frames become responses in HTTP/1.1."""

    def __init__(self, *, tls: bool) -> None:
        self._scheme = "https" if tls else "http"
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding="latin-1"))
        self._connection.initiate_connection()
        self._connection.increment_flow_control_window(WINDOW)
        self._stream: int | None = None
        self._body = b""
        self._unread = b""  # the beginning of a frame
        self.ended = False  # the peer takes no further request
        self.refused = False  # nor did it take the one that is open

    @property
    def holds_back(self) -> bool:
        """Whether some of the request waits for the peer to take it."""
        return bool(self._body) and self._stream is not None

    def request(self, data: bytes) -> bytes:
        """What is sent for a whole request, as far as the peer takes it; `received` says what follows."""
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        method, path, _ = first.split(" ")
        fields = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
        authority = next(value for name, value in fields if name == "host")
        pseudo = [
            (":method", method),
            (":authority", authority),
            (":scheme", self._scheme),
            (":path", path),
        ]
        self._stream = self._connection.get_next_available_stream_id()
        kept = [field for field in fields if field[0] not in _NOT_SENT]
        self._connection.send_headers(self._stream, pseudo + kept, end_stream=not body)
        if body:
            self._connection.increment_flow_control_window(WINDOW, self._stream)
        self._body = body
        self._send_body()
        return self._connection.data_to_send()

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        """What the bytes of a read say in HTTP/1.1, and what is sent for them.

        Raises:
            Http2Error: The protocol is broken, or the request was given up.
        """
        said = b""
        self._unread += data
        while not self.refused and (frame := self._next_frame()):
            if len(frame) > _HEAD and frame[3] == _GOAWAY:
                self._go_away(int.from_bytes(frame[9:13]) & 0x7FFF_FFFF, int.from_bytes(frame[13:17]))
                continue
            try:
                events = self._connection.receive_data(frame)
            except ProtocolError as error:
                raise Http2Error(f"not HTTP/2: {error}") from None
            said += b"".join(map(self._said, events))
        return said, self._connection.data_to_send()

    def _next_frame(self) -> bytes:
        """The next frame, once it is whole, or one that is too long, as far as it came."""
        size = _HEAD + int.from_bytes(self._unread[:3])
        if len(self._unread) < _HEAD:
            return b""
        if size > _HEAD + self._connection.max_inbound_frame_size:
            size = len(self._unread)
        elif len(self._unread) < size:
            return b""
        frame, self._unread = self._unread[:size], self._unread[size:]
        return frame

    def _go_away(self, last: int, code: int) -> None:
        """The server takes no stream after the `last`. It goes on with those before, which h2 would not read
        after such a frame, so h2 does not get it."""
        self.ended = True
        if self._stream is not None and last < self._stream:
            self.refused = True
        elif self._stream is not None and code:
            raise Http2Error(f"the server ended the connection (code {code})")

    def _said(self, event: Event) -> bytes:
        if isinstance(event, WindowUpdated):
            self._send_body()
        elif isinstance(event, StreamReset) and event.stream_id == self._stream:
            raise Http2Error(f"the server gave the request up (code {event.error_code})")
        elif isinstance(event, ResponseReceived) and event.stream_id == self._stream:
            return _head(event.headers)
        elif isinstance(event, DataReceived) and event.stream_id == self._stream:
            self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return b"%x\r\n%b\r\n" % (len(event.data), event.data) if event.data else b""
        elif isinstance(event, StreamEnded) and event.stream_id == self._stream:
            self._stream = None
            return b"0\r\n\r\n"
        return b""

    def _send_body(self) -> None:
        """As much of the body as the peer's window takes; the rest waits for the window to grow."""
        while self._body and self._stream is not None:
            room = min(
                self._connection.local_flow_control_window(self._stream),
                self._connection.max_outbound_frame_size,
                len(self._body),
            )
            if room <= 0:
                return
            part, self._body = self._body[:room], self._body[room:]
            self._connection.send_data(self._stream, part, end_stream=not self._body)


def _head(given: Iterable[tuple[Any, ...]]) -> bytes:
    """The head in HTTP/1.1 of fields by name and value."""
    headers = [(str(field[0]), str(field[1])) for field in given]
    status = next(value for name, value in headers if name == ":status")
    lines = [f"HTTP/1.1 {status} -"]
    lines += [f"{name}: {value}" for name, value in headers if not name.startswith(":")]
    kept = [line for line in lines if line.partition(":")[0] not in _NOT_SENT]
    return "\r\n".join([*kept, "transfer-encoding: chunked", "", ""]).encode("latin-1")
