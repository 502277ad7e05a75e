"""Ended responses in a file, so that the memory of a client does not grow with the length of a load."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from harness.loadgen.load_plan import RawResponse

#: The index of a request, and the bytes of the response that follow.
_HEAD = struct.Struct("=QQ")


class ResponseWriter:
    """Appends responses to an open file."""

    def __init__(self, file: int) -> None:
        self._file = os.fdopen(file, "wb")
        self._encoder = msgspec.msgpack.Encoder()
        self._unwritten = bytearray()

    def add(self, response: RawResponse) -> int:
        """Take a response; returns the bytes of memory that it has until it is written."""
        data, start = self._unwritten, len(self._unwritten)
        data += bytes(_HEAD.size)
        self._encoder.encode_into(response, data, -1)
        size = len(data) - start
        _HEAD.pack_into(data, start, response.index, size - _HEAD.size)
        return size

    async def write(self) -> int:
        """Write what there is, in a thread: a slow disk stops nobody. Returns its bytes; raises OSError."""
        data, self._unwritten = self._unwritten, bytearray()
        await asyncio.to_thread(self._write, data)
        return len(data)

    def _write(self, data: bytearray) -> None:
        self._file.write(data)
        self._file.flush()


class StoredResponses(Sequence[RawResponse]):
    """The responses of a load in the order of requests; each is read when it is asked for."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = [os.dup(file) for file in files]
        self._places = sorted(
            (index, file, start, size) for file in self._files for index, start, size in _places(file)
        )
        self._decoder = msgspec.msgpack.Decoder(RawResponse)

    def __del__(self) -> None:
        for file in self._files:
            os.close(file)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        _, file, start, size = self._places[place]
        return self._decoder.decode(os.pread(file, size, start))


def _places(file: int) -> Iterator[tuple[int, int, int]]:
    """Yield the index of each response in a file, where it starts, and its bytes."""
    start = 0
    while head := os.pread(file, _HEAD.size, start):
        index, size = _HEAD.unpack(head)
        yield index, start + _HEAD.size, size
        start += _HEAD.size + size
