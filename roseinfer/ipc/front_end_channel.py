"""A front end's side of its channel to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from roseinfer.ipc.client_turns import ClientTurns
from roseinfer.ipc.framing import FrameReader, frame
from roseinfer.ipc.messages import FromEngine, Submit
from roseinfer.tracing.spans import span


class FrontEndChannel(asyncio.Protocol):
    """`on_messages` is called with the messages that one read completes, `on_close` once.

    Once the socket takes no more, submissions wait here, where clients take turns: the channel itself holds
    little, so that one client's submissions do not keep those of others.
    """

    def __init__(self, on_messages: Callable[[list[FromEngine]], None], on_close: Callable[[], None]) -> None:
        self._reader = FrameReader()
        self._decode = msgspec.msgpack.Decoder(FromEngine).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_messages, self._on_close = on_messages, on_close
        self._submissions, self._full = ClientTurns[Submit](), False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not registered as subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        with span("roseinfer.ipc.recv"):
            messages = [self._decode(payload) for payload in self._reader.feed(data)]
        self._on_messages(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_close()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        while self._submissions and not self._full:
            self.send(self._submissions.take())

    def submit(self, submission: Submit) -> None:
        """Send a submission when it is its client's turn."""
        if self._full:
            self._submissions.add(submission.client, submission.id, submission)
        else:
            self.send(submission)

    def withdraw(self, id: int) -> Submit | None:
        """Return the submission with this id if it has not been sent, which it then never is."""
        return self._submissions.discard(id)

    def send(self, message: object) -> None:
        """Queue a message; it is written as the socket takes it."""
        with span("roseinfer.ipc.send"):
            self._transport.write(frame(self._encode(message)))

    def close(self) -> None:
        """Close the channel, which the engine notices."""
        self._transport.close()
