"""Frames messages in a byte stream: a length in four bytes, little-endian, then the payload (msgpack)."""

from __future__ import annotations

_HEADER = 4


def frame(payload: bytes) -> bytes:
    """The payload with its length in front."""
    return len(payload).to_bytes(_HEADER, "little") + payload


class FrameReader:
    """Splits a byte stream, which arrives in any pieces, into the payloads of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads completed by `data`."""
        self._buffer += data
        payloads, start = [], 0
        while len(self._buffer) - start >= _HEADER:
            end = start + _HEADER + int.from_bytes(self._buffer[start : start + _HEADER], "little")
            if end > len(self._buffer):
                break
            payloads.append(bytes(self._buffer[start + _HEADER : end]))
            start = end
        del self._buffer[:start]
        return payloads
