"""What has come on a connection and is not parsed yet."""

from __future__ import annotations

from roseinfer.server.http.budget import Account

#: Bytes that are read at a time, and parsed at a time: limits are seen between two pieces.
READ = 16 << 10
#: Bytes beyond which nothing more is read.
MAX_UNPARSED_BYTES = READ
_END = b"\r\n\r\n"


class Unparsed:
    """Bytes, which count as held."""

    __slots__ = ("_account", "_data")

    def __init__(self, account: Account) -> None:
        self._account, self._data = account, bytearray()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def enough(self) -> bool:
        """Whether so much waits that nothing more is to be read."""
        return len(self._data) >= MAX_UNPARSED_BYTES

    def add(self, data: bytes | memoryview) -> None:
        """Keep what has come."""
        self._data += data
        self._account.hold(len(data))

    def take(self) -> bytes:
        """The next piece. One with more than one empty line ends at the first, and every head ends with one:
        so it has two requests at most."""
        data = self._data
        end = data.find(_END, 0, READ) + len(_END)
        size = READ if end < len(_END) or data.find(_END, end, READ) < 0 else end
        piece = bytes(data[:size])
        del data[:size]
        self._account.hold(-len(piece))
        return piece

    def clear(self) -> None:
        """Forget all."""
        self._account.hold(-len(self._data))
        self._data = bytearray()
