"""The loop of an engine's process, without a model."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import msgspec
import pytest

from roseinfer.engine.process import _serve
from roseinfer.ipc.engine_channel import EngineChannels
from roseinfer.ipc.framing import frame
from roseinfer.ipc.messages import Discard, ToEngine

pytestmark = pytest.mark.integration


class Waits:
    """An engine whose one step is best called after two messages."""

    def __init__(self) -> None:
        self.has_work, self.seen = True, list[str]()
        self.came, self.stepped = threading.Event(), threading.Event()

    @property
    def launch_at(self) -> float:
        return time.monotonic() + 600 if len(self.seen) < 2 else 0.0

    def discard(self, request_id: int) -> None:
        self.seen.append(f"discard {request_id}")
        self.came.set()

    def step(self) -> None:
        if not self.stepped.is_set():
            self.seen.append("step")
        self.has_work = False
        self.stepped.set()

    def profile_ranks(self, path: str | None, *, with_stack: bool = False) -> None: ...


def test_messages_that_come_before_the_launch_are_in_it() -> None:
    engine: Any = Waits()
    ours, theirs = socket.socketpair()
    channels: EngineChannels[ToEngine] = EngineChannels([theirs], ToEngine)  # type: ignore[arg-type]

    def serve() -> None:
        with pytest.raises(EOFError):
            _serve(engine, channels)

    thread = threading.Thread(target=serve)
    with ours, theirs:
        thread.start()
        for number in (7, 8):
            ours.sendall(frame(msgspec.msgpack.encode(Discard(number))))
            engine.came.wait()
        engine.stepped.wait()
        ours.shutdown(socket.SHUT_WR)
        thread.join()
    assert engine.seen == ["discard 7", "discard 8", "step"]
