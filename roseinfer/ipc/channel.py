"""Messages over a stream socket: a length in four bytes, then msgpack."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

T = TypeVar("T")
_HEADER = 4


def frame(payload: bytes) -> bytes:
    """The payload with its length in front."""
    return len(payload).to_bytes(_HEADER, "little") + payload


class FrameReader:
    """Cuts a byte stream into the payloads of its frames, however it arrives."""

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


class BlockingChannel(Generic[T]):
    """The engine's end. `receive` does not wait unless told to; `send` waits until all is written."""

    def __init__(self, sock: socket.socket, incoming: type[T]) -> None:
        self._socket = sock
        self._reader = FrameReader()
        self._decode = msgspec.msgpack.Decoder(incoming).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, message: object) -> None:
        """Raises OSError when the other side is gone."""
        self._socket.sendall(frame(self._encode(message)))

    def receive(self, *, wait: bool) -> list[T]:
        """Every message that has arrived. Raises EOFError when the other side is gone."""
        if not self._poll.poll(None if wait else 0):
            return []
        data = self._socket.recv(1 << 20)
        if not data:
            raise EOFError
        return [self._decode(payload) for payload in self._reader.feed(data)]


class AsyncChannel(asyncio.Protocol, Generic[T]):
    """The front end's end: `on_message` is called for each message, `on_close` once."""

    def __init__(
        self, incoming: type[T], on_message: Callable[[T], None], on_close: Callable[[], None]
    ) -> None:
        self._reader = FrameReader()
        self._decode = msgspec.msgpack.Decoder(incoming).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_message, self._on_close = on_message, on_close

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not registered as subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        for payload in self._reader.feed(data):
            self._on_message(self._decode(payload))

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_close()

    def send(self, message: object) -> None:
        """Queue a message; it is written as the socket takes it."""
        self._transport.write(frame(self._encode(message)))

    def close(self) -> None:
        """The engine process ends when its channel closes."""
        self._transport.close()
