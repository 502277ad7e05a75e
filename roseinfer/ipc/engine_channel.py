"""The engine's side of its channels, one to each front end."""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable, Sequence

import msgspec

from roseinfer.ipc.framing import FrameReader, frame
from roseinfer.ipc.messages import ToEngine

#: Bytes that are buffered for a front end that reads too slowly: minutes of tokens, seconds of logprobs.
#: Seconds that the engine then waits for it to read on.
MAX_BACKLOG, PATIENCE_S = 64 << 20, 10.0
#: Bytes that are read at a time, and how often before a step: all that a front end has, unless it sends
#: without end.
READ, MAX_READS = 1 << 20, 8
#: Seconds without a message after which `on_idle` is called.
IDLE_S = 2.0
#: Seconds that waking up may take. A wait until a time is busy from so long before on.
WAKE_S = 2e-4


class FrontEndStuckError(Exception):
    """A front end does not read what it is sent."""


class EngineChannels:
    """Channels to all front ends: non-blocking, except `receive`. With `wait` that busy-waits for `spin_s`
    seconds before it sleeps.

    What a socket does not take is buffered, up to `max_backlog` bytes, and sent by a later `receive`. Above
    that `send` waits until the front end has read on, for `patience_s` seconds.
    """

    spin_s = 0.0

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        max_backlog: int = MAX_BACKLOG,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._sockets = list(sockets)
        self._readers = [FrameReader() for _ in sockets]
        self._backlogs = [bytearray() for _ in sockets]
        self._max_backlog, self._patience_s = max_backlog, patience_s
        self.on_idle: Callable[[], object] = lambda: None
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._poll = select.poll()
        self._index_of = {sock.fileno(): index for index, sock in enumerate(sockets)}
        for sock in sockets:
            sock.setblocking(False)
            self._poll.register(sock, select.POLLIN)

    def __len__(self) -> int:
        return len(self._sockets)

    def receive(self, *, wait: bool, until: float | None = None) -> list[tuple[int, ToEngine]]:
        """Every message that has arrived, with the index of its front end.

        Args:
            wait: Wait for the first one.
            until: Wait for it until this time (monotonic, s): without `wait` too, and with it no longer.

        Raises EOFError when the first front end, which is the server's parent process, is gone.
        """
        messages: list[tuple[int, ToEngine]] = []
        for fd, events in self._events(wait=wait, until=until):
            index = self._index_of[fd]
            if events & select.POLLOUT:
                self._flush(index)
            if events & ~select.POLLOUT:
                messages += [(index, message) for message in self._read(index)]
        return messages

    def _events(self, *, wait: bool, until: float | None) -> list[tuple[int, int]]:
        events = self._poll.poll(0)
        if not wait:
            while not events and until is not None and (remaining_s := until - time.monotonic()) > 0:
                nap_s = max(0.0, remaining_s - WAKE_S)
                if 0 < nap_s < 1e-3:  # poll counts whole milliseconds; a message is read after the nap
                    time.sleep(nap_s)
                events = self._poll.poll(int(1e3 * nap_s))
            return events
        end = time.monotonic() + min(self.spin_s, _left(until))
        while not events and time.monotonic() < end:
            events = self._poll.poll(0)
        events = events or self._poll.poll(1e3 * min(IDLE_S, _left(until)))
        if not events:
            self.on_idle()
            events = self._poll.poll(None if until is None else 1e3 * _left(until))
        return events

    def send(self, index: int, message: object) -> None:
        """Send or buffer a message; a front end that is gone gets nothing. Raises FrontEndStuckError."""
        data = frame(self._encode(message))
        backlog = self._backlogs[index]
        if backlog:
            backlog += data
            if len(backlog) > self._max_backlog:
                self._wait_for(index)
            return
        sent = self._write(index, data)
        if sent < len(data):
            backlog += data[sent:]
            self._poll.modify(self._sockets[index], select.POLLIN | select.POLLOUT)

    def _wait_for(self, index: int) -> None:
        """Send until no more is buffered than may be. Raises FrontEndStuckError."""
        backlog, poll = self._backlogs[index], select.poll()
        poll.register(self._sockets[index], select.POLLOUT)
        while len(backlog) > self._max_backlog:
            if not poll.poll(1e3 * self._patience_s):
                waited = f"for {self._patience_s:g} s, with {len(backlog)} bytes to read"
                raise FrontEndStuckError(f"front end {index} has read nothing {waited}")
            self._flush(index)

    def _flush(self, index: int) -> None:
        backlog = self._backlogs[index]
        del backlog[: self._write(index, backlog)]
        if not backlog:
            self._poll.modify(self._sockets[index], select.POLLIN)

    def _write(self, index: int, data: bytes | bytearray) -> int:
        """Bytes that the socket took; all of them when the front end is gone, which its parent notices."""
        try:
            return self._sockets[index].send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _read(self, index: int) -> list[ToEngine]:
        messages: list[ToEngine] = []
        for _ in range(MAX_READS):
            try:
                data = self._sockets[index].recv(READ)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                if index == 0:
                    raise EOFError
                self._poll.unregister(self._sockets[index])
                self._backlogs[index].clear()
                break
            messages += map(self._decode, self._readers[index].feed(data))
        return messages


def _left(until: float | None) -> float:
    """Seconds until then, at least 0."""
    return math.inf if until is None else max(0.0, until - time.monotonic())
