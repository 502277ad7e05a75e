"""Writes the body of an event stream in chunked transfer coding (RFC 9112, 7.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from roseinfer.server.http import writer
from roseinfer.server.http.joined_writes import JoinedWrites


class Chunks:
    """The chunks of one stream. Those written within `with joined` are sent in one write at its end."""

    __slots__ = ("_joined", "_pieces", "_write")

    def __init__(self, write: Callable[[bytes], None], joined: JoinedWrites) -> None:
        self._write, self._joined = write, joined
        self._pieces: list[bytes] = []  # until they are written together

    def write(self, data: bytes) -> None:
        """Write a chunk."""
        piece = writer.chunk(data)
        if self._joined.active:
            if not self._pieces:
                self._joined.at_end(self._write_pieces)
            self._pieces.append(piece)
        else:
            self._write(piece)

    def _write_pieces(self) -> None:
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._write(data)

    def end(self, events: Iterable[bytes]) -> None:
        """Write `events` as the last chunks."""
        pieces = (*self._pieces, *map(writer.chunk, events), writer.LAST_CHUNK)
        self._pieces.clear()
        self._write(b"".join(pieces))

    def drop(self) -> None:
        """Write nothing any more: the client has gone."""
        self._pieces.clear()
        self._write = write_nothing


def write_nothing(data: bytes) -> None:
    """Discard `data`: the write function of a closed connection."""
