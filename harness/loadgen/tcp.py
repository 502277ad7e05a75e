"""A connection without encryption, on a plain socket, with the kernel's time of arrival for each read."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Callable
from time import monotonic, time

from harness.loadgen.connection import Connection, Owner

#: A chunk fits; a larger buffer would cost each read the time to free most of it.
_READ_BYTES = 1 << 12


class TcpConnection(Connection):
    """Reads and writes a socket of its own, when it is ready.

    A stamp is the moment from which the bytes could be read. The kernel's stamp says when the last of them
    came in: neither the order in which ready sockets are read nor a client that was not running moves it. But
    after a lost segment bytes come in before they can be read: `readable_from` has the rule. Where the
    kernel gives no stamp it is the time of the read.
    """

    def __init__(self, owner: Owner, ready: ReadySet, clock: ArrivalClock, sock: socket.socket) -> None:
        super().__init__(owner)
        self._ready = ready
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._unsent = memoryview(b"")
        self._closed = False
        self._disordered, self._segments_early = False, 0

    @classmethod
    async def open(
        cls, owner: Owner, ready: ReadySet, clock: ArrivalClock, address: str, port: int
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
        self._disordered = False
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
        at = self._clock.stamp(notes[0][2], self.last_event) if notes else monotonic()
        if self._ready.polled_at - at > UNSURE_S:
            read = self.response.segments if self.response is not None else ()
            was_emptied = not read or len(read[-1][1]) < _READ_BYTES  # else it was ready all the time
            idle_at = self._ready.idle_at if was_emptied else 0.0
            at = readable_from(at, idle_at, self._ready.polled_at, self._came_in_disorder)
        self.received(at, data)

    def _came_in_disorder(self) -> bool:
        """Tell whether segments of this answer came before an earlier one, as far as the kernel counts."""
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _EARLY_SEGMENTS.size)
        if len(info) == _EARLY_SEGMENTS.size:
            [count] = _EARLY_SEGMENTS.unpack(info)
            self._disordered |= count != self._segments_early
            self._segments_early = count
        return self._disordered

    def _broke(self, error: OSError | None) -> None:
        if not self._closed:
            self.lost(error)


#: tcpi_rcv_ooopack of struct tcp_info (linux/tcp.h, since Linux 5.4).
_EARLY_SEGMENTS = struct.Struct("224xI")
#: A stamp may be wrong by so much.
UNSURE_S = 1e-3


def readable_from(
    arrived: float, idle_at: float, polled_at: float, came_in_disorder: Callable[[], bool]
) -> float:
    """Return the moment from which bytes could be read.

    It is not before they came in, nor before the last moment at which the socket was known not to be ready,
    nor after the poll that found it ready. Where these are less than UNSURE_S apart it is the first of them.
    Otherwise either the client was late, and they could be read when they came in, or they waited for a lost
    segment, and the client for them.

    Args:
        arrived: When the last of them came in, by the kernel.
        idle_at: When the socket was last known not to be ready.
        polled_at: When it was found to be ready.
        came_in_disorder: Asks the kernel whether segments came before an earlier one.
    """
    earliest = max(arrived, idle_at)
    return polled_at if polled_at - earliest > UNSURE_S and came_in_disorder() else earliest


#: Sockets read in a row before the loop looks at its timers: sending waits for no more than these.
_BATCH = 64


class ReadySet:
    """An epoll set of its own inside the loop's: a ready socket costs a dictionary look-up instead of the
    loop's handle and context.

    Attributes:
        polled_at: When the latest poll was over, which finds all sockets that are ready.
        idle_at: When the poll before it began: sockets that were emptied since, or not ready, were not ready
            then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._unread: list[tuple[int, int]] = []
        self.polled_at = self.idle_at = self._begun_at = 0.0
        loop.add_reader(self._epoll.fileno(), self._read)

    def add(self, fd: int, read: Callable[[], None]) -> None:
        """Call `read` whenever `fd` can be read."""
        self._readers[fd] = read
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Stop calling it; call this before `fd` is closed."""
        del self._readers[fd]
        self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop all calls."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _read(self) -> None:
        readers, unread = self._readers, self._unread
        if not unread:
            self.idle_at, self._begun_at = self._begun_at, monotonic()
            unread = self._epoll.poll(0, len(readers) or 1)
            self.polled_at = monotonic()
        self._unread = unread[_BATCH:]
        for fd, _ in unread[:_BATCH]:
            if fd in readers:  # an earlier one of the batch may have closed it
                readers[fd]()


#: socket(7) on Linux: recvmsg then returns the CLOCK_REALTIME at which the last of the bytes read arrived.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
NOTE_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
#: The clocks are read one after the other; further apart than this, the time of day was set.
_STEP_S = 5e-4


def ask_for_stamps(sock: socket.socket) -> None:
    """Make reads of `sock` return stamps."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


class ArrivalClock:
    """Turns the kernel's stamps into CLOCK_MONOTONIC seconds.

    Both clocks are slewed alike; setting the time of day moves only one of them, which every stamp checks.
    """

    def __init__(self) -> None:
        self._apart, self._set_at = 0.0, 0.0
        self.refresh()

    def refresh(self) -> None:
        """Measure the offset of the two clocks, by the closest pair of several readings."""
        pairs = [(monotonic(), time(), monotonic()) for _ in range(16)]
        before, epoch, after = min(pairs, key=lambda pair: pair[2] - pair[0])
        apart = epoch - (before + after) / 2
        if abs(apart - self._apart) > _STEP_S:
            self._set_at = after
        self._apart = apart

    def stamp(self, note: bytes, earliest: float) -> float:
        """The time at which the bytes just read arrived; now, if `note` cannot be right.

        It cannot be before `earliest`, the request or the read before it. It is not trusted where the time of
        day was set since the clocks were compared, nor if it is from before that was noticed.
        """
        now = monotonic()
        if abs(time() - now - self._apart) > _STEP_S:
            self.refresh()
            return now
        seconds, nanoseconds = _TIMESPEC.unpack(note)
        arrived: float = seconds + nanoseconds * 1e-9 - self._apart
        return arrived if earliest <= arrived <= now and self._set_at <= arrived else now
