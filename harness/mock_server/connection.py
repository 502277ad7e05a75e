"""One client connection of the mock server: requests with the kernel's own time of arrival, answers."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from time import monotonic, time

import httptools

#: Linux: socket(7). Each read then comes with the CLOCK_REALTIME at which its last byte arrived.
SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_READ_BYTES = 1 << 16

#: Called with the connection, the path, the body, and when the request had arrived (CLOCK_MONOTONIC).
OnRequest = Callable[["Connection", str, bytes, float], None]


class Connection:
    """Carries one request at a time. Writing never blocks: what the kernel does not take waits."""

    def __init__(self, sock: socket.socket, on_request: OnRequest) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.unsent = bytearray()
        self.closing = False
        self.served = 0
        self._on_request = on_request
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._body = b""
        self._arrived = 0.0

    def read(self) -> bool:
        """Take in what came; False when the peer is gone or does not speak HTTP."""
        try:
            data, notes, _, _ = self.sock.recvmsg(_READ_BYTES, 64)
        except BlockingIOError:
            return True
        except OSError:
            return False
        now = monotonic()
        self._arrived = now
        for _level, _kind, stamp in notes:
            seconds, nanoseconds = _TIMESPEC.unpack(stamp[:16])
            self._arrived = min(now, seconds + nanoseconds * 1e-9 - (time() - monotonic()))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            return False
        return bool(data)

    def write(self, data: bytes) -> bool:
        """Hand `data` to the kernel; False when some of it has to wait, or the peer is gone."""
        if not self.unsent:
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return True  # the next read says so
            if sent == len(data):
                return True
            data = data[sent:]
        self.unsent += data
        return False

    def flush(self) -> bool:
        """Write what waits; True when nothing waits any more."""
        data, self.unsent = bytes(self.unsent), bytearray()
        return self.write(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path = url.decode("ascii", "replace")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._on_request(self, self._path, self._body, self._arrived)
        self.served += 1
