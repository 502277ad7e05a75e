"""Data that has arrived on a connection and is not parsed yet."""

from __future__ import annotations

from roseinfer.server.http.budget import Account

#: Bytes that are read, and parsed, at a time: limits are checked between two pieces.
READ = 16 << 10
#: Bytes from which on nothing more is read.
MAX_UNPARSED_BYTES = READ
_END = b"\r\n\r\n"


class Unparsed:
    """The bytes, which count towards the budget."""

    __slots__ = ("_account", "_data")

    def __init__(self, account: Account) -> None:
        self._account, self._data = account, bytearray()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def enough(self) -> bool:
        """Whether reading should pause."""
        return len(self._data) >= MAX_UNPARSED_BYTES

    def add(self, data: bytes | memoryview) -> None:
        """Add received data."""
        self._data += data
        self._account.hold(len(data))

    def take(self) -> bytes:
        """The next piece. A piece with more than one empty line ends at the first. Every head ends with an
        empty line, so a piece has parts of two requests at most."""
        data = self._data
        end = data.find(_END, 0, READ) + len(_END)
        size = READ if end < len(_END) or data.find(_END, end, READ) < 0 else end
        piece = bytes(data[:size])
        del data[:size]
        self._account.hold(-len(piece))
        return piece

    def clear(self) -> None:
        """Drop everything."""
        self._account.hold(-len(self._data))
        self._data = bytearray()
