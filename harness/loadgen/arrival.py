"""When bytes arrived, by the kernel's stamps."""

from __future__ import annotations

import socket
import struct
from time import monotonic, time

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
        return arrived if max(earliest, self._set_at) <= arrived <= now else now
