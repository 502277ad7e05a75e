"""A socket to a server that speaks HTTP/2 alone, for http.client, which speaks HTTP/1.1."""

from __future__ import annotations

import io
import socket
from typing import Any

from harness.loadgen.http import Http2Error
from harness.loadgen.http2 import Http2Bytes

_READ_BYTES = 1 << 16


class Http2Socket:
    """Has what http.client calls: it sends one request, then reads the answer."""

    def __init__(self, sock: socket.socket, *, tls: bool) -> None:
        self._sock = sock
        self._http2 = Http2Bytes(tls=tls)
        self._request = b""

    def sendall(self, data: bytes) -> None:
        """Gathers the request; the first read sends it."""
        self._request += data

    def makefile(self, mode: str) -> io.BufferedReader:
        """The answer, in HTTP/1.1."""
        self._sock.sendall(self._http2.request(self._request))
        return io.BufferedReader(_Answer(self._sock, self._http2))

    def close(self) -> None:
        self._sock.close()


class _Answer(io.RawIOBase):
    def __init__(self, sock: socket.socket, http2: Http2Bytes) -> None:
        self._sock = sock
        self._http2 = http2
        self._unread = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unread:
            data = self._sock.recv(_READ_BYTES)
            if not data:
                return 0
            try:
                self._unread, reply = self._http2.received(data)
            except Http2Error as error:
                raise OSError(str(error)) from None
            if reply:
                self._sock.sendall(reply)
        count = min(len(buffer), len(self._unread))
        buffer[:count], self._unread = self._unread[:count], self._unread[count:]
        return count
