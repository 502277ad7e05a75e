"""Messages over a real socket pair, however the bytes arrive."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.ipc.channel import AsyncChannel, BlockingChannel, FrameReader, frame
from roseinfer.ipc.messages import Discard, FromEngine, Load, Query, Submit, ToEngine, Tokens
from roseinfer.params import Finished, FinishReason, SamplingParams

TO_ENGINE = [
    Submit(3, b"\x01\x00\x00\x00", SamplingParams(5, temperature=0.5, seed=2**64 - 1)),
    Discard(3),
    Query(),
    Submit(4, b"x" * 3_000_000, SamplingParams(1)),  # more than a socket buffers
]
FROM_ENGINE = [
    Tokens(b"12345678", b"abcdefgh", (Finished(1, FinishReason.LENGTH, 0.1, 0.2, 0.3),)),
    Load(1, 2, 0.5, 3),
    Tokens(b"x" * 3_000_000, b"", ()),
]


@given(payloads=st.lists(st.binary(max_size=300), max_size=8), data=st.data())
def test_frames_survive_any_split(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, received = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[start:end])
    assert received == payloads


def test_both_ways_between_event_loop_and_thread() -> None:
    """What the front end sends the engine gets, and the other way round; an end is noticed by both."""
    ours, theirs = socket.socketpair()
    at_engine: list[object] = []

    def engine() -> None:
        channel: BlockingChannel[ToEngine] = BlockingChannel(theirs, ToEngine)  # type: ignore[arg-type]
        while len(at_engine) < len(TO_ENGINE):
            at_engine.extend(channel.receive(wait=True))
        assert channel.receive(wait=False) == []
        for message in FROM_ENGINE:
            channel.send(message)
        with pytest.raises(EOFError):
            channel.receive(wait=True)
        at_engine.append("closed")

    async def front_end() -> list[object]:
        received: list[object] = []
        complete, closed = asyncio.Event(), asyncio.Event()

        def on_message(message: FromEngine) -> None:
            received.append(message)
            if len(received) == len(FROM_ENGINE):
                complete.set()

        _, channel = await asyncio.get_running_loop().create_unix_connection(
            lambda: AsyncChannel[FromEngine](FromEngine, on_message, closed.set), sock=ours
        )
        for message in TO_ENGINE:
            channel.send(message)
        await asyncio.wait_for(complete.wait(), 20)
        channel.close()
        await asyncio.wait_for(closed.wait(), 20)
        return received

    thread = threading.Thread(target=engine)
    thread.start()
    received = asyncio.run(front_end())
    thread.join(20)
    theirs.close()
    assert received == FROM_ENGINE
    assert at_engine == [*TO_ENGINE, "closed"]
