"""A connection without encryption, on a plain socket, with the kernel's time of arrival for each read."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic

from harness.loadgen.arrival import NOTE_BYTES, ArrivalClock, ask_for_stamps
from harness.loadgen.connection import Connection, Owner
from harness.loadgen.readiness import ReadySet

#: A chunk fits; a larger buffer would cost each read the time to free most of it.
_READ_BYTES = 1 << 12


class TcpConnection(Connection):
    """Reads and writes a socket of its own, when it is ready.

    A stamp is the kernel's, taken when the last of the bytes came in: neither the order in which ready
    sockets are read nor a client that was not running moves it. Where the kernel gives none it is the time of
    the read.
    """

    def __init__(
        self,
        owner: Owner,
        ready: ReadySet,
        clock: ArrivalClock,
        sock: socket.socket,
    ) -> None:
        super().__init__(owner)
        self._ready = ready
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._unsent = memoryview(b"")
        self._closed = False

    @classmethod
    async def open(
        cls,
        owner: Owner,
        ready: ReadySet,
        clock: ArrivalClock,
        address: str,
        port: int,
    ) -> TcpConnection:
        """Connect to a numeric address. Raises OSError."""
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(sock)
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
        except BaseException:
            sock.close()
            raise
        connection = cls(owner, ready, clock, sock)
        ready.add(connection._fd, connection._readable)
        return connection

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._ready.remove(self._fd)
            self._loop.remove_writer(self._fd)
            self._sock.close()

    def write(self, data: bytes) -> bool:
        if self._unsent:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return False
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._loop.call_soon(self._broke, error)
            return False
        if sent == len(data):
            return True
        self._unsent = memoryview(data)[sent:]
        self._loop.add_writer(self._fd, self._writable)
        return False

    def _writable(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._broke(error)
            return
        if not self._unsent:
            self._loop.remove_writer(self._fd)
            self.written()

    def _readable(self) -> None:
        try:
            data, notes, _, _ = self._sock.recvmsg(_READ_BYTES, NOTE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._broke(error)
            return
        if not data:
            self._broke(None)
            return
        self.received(self._clock.stamp(notes[0][2], self.last_event) if notes else monotonic(), data)

    def _broke(self, error: OSError | None) -> None:
        if not self._closed:
            self.lost(error)
