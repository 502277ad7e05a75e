"""Messages over real socket pairs, however the bytes arrive."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.engine.process import split, split_logprobs
from roseinfer.ipc.engine_channel import EngineChannels, FrontEndStuckError
from roseinfer.ipc.framing import FrameReader, frame
from roseinfer.ipc.front_end_channel import FrontEndChannel
from roseinfer.ipc.messages import OWNER_SHIFT, Discard, FromEngine, Load, Query, Submit, Tokens
from roseinfer.request.logprobs import StepLogprobs
from roseinfer.request.params import Finished, FinishReason, SamplingParams
from roseinfer.scheduler.scheduler import StepResult

pytestmark = pytest.mark.integration

TO_ENGINE = [
    Submit(3, b"\x01\x00\x00\x00", SamplingParams(5, temperature=0.5, seed=2**64 - 1), 7.25),
    Discard(3),
    Query(),
    Submit(4, b"x" * 3_000_000, SamplingParams(1), 8.0),  # more than a socket buffers
]
FROM_ENGINE = [
    Tokens(b"12345678", b"abcdefgh", (Finished(1, FinishReason.LENGTH, 0.1, 0.2, 0.3),)),
    Load(1, 2, 0.5, 3, 8, 4),
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


def test_both_ways_between_two_front_ends_and_the_engine() -> None:
    """Each front end gets its own messages, in order; the engine notices when the first front end ends."""
    pairs = [socket.socketpair() for _ in range(2)]
    at_engine: list[list[object]] = [[], []]

    def engine() -> None:
        channels = EngineChannels([end for _, end in pairs])
        while sum(map(len, at_engine)) < 2 * len(TO_ENGINE):
            for owner, message in channels.receive(wait=True):
                at_engine[owner].append(message)
        for made in FROM_ENGINE:
            for owner in range(2):
                channels.send(owner, made)
        with pytest.raises(EOFError):
            while True:
                assert channels.receive(wait=True) == []
        at_engine[0].append("closed")

    got = [0, 0]

    async def front_end(index: int, both_complete: asyncio.Event) -> list[object]:
        received: list[object] = []
        closed = asyncio.Event()

        def on_messages(messages: list[FromEngine]) -> None:
            received.extend(messages)
            got[index] += len(messages)
            if got == [len(FROM_ENGINE)] * 2:
                both_complete.set()

        _, channel = await asyncio.get_running_loop().create_unix_connection(
            lambda: FrontEndChannel(on_messages, closed.set), sock=pairs[index][0]
        )
        for message in TO_ENGINE:
            channel.send(message)
        await asyncio.wait_for(both_complete.wait(), 20)
        channel.close()
        await asyncio.wait_for(closed.wait(), 20)
        return received

    async def both() -> list[list[object]]:
        both_complete = asyncio.Event()
        return await asyncio.gather(*(front_end(index, both_complete) for index in range(2)))

    thread = threading.Thread(target=engine)
    thread.start()
    received = asyncio.run(both())
    thread.join(20)
    for _, end in pairs:
        end.close()
    assert received == [FROM_ENGINE, FROM_ENGINE]
    assert at_engine == [[*TO_ENGINE, "closed"], TO_ENGINE]


def test_a_front_end_that_does_not_read_ends_the_engine_at_last() -> None:
    """Messages to it are kept up to the limit, and arrive whole once it reads."""
    (first, at_first), (second, at_second) = socket.socketpair(), socket.socketpair()
    with first, second, at_first, at_second:
        channels = EngineChannels([at_first, at_second], max_backlog=2_000_000, patience_s=0.01)
        message = Tokens(b"x" * 100_000, b"", ())
        for _ in range(15):
            channels.send(1, message)
        reader, received = FrameReader(), 0
        second.settimeout(60)
        while received < 15:
            received += len(reader.feed(second.recv(1 << 20)))
            channels.receive(wait=False)
        with pytest.raises(FrontEndStuckError, match="front end 1"):
            for _ in range(60):
                channels.send(1, message)
        second.close()
        channels.receive(wait=True)
        channels.send(1, message)
        channels.send(0, Query())
        assert first.recv(100)


def test_the_engine_is_no_faster_than_a_front_end_that_reads() -> None:
    """Above the limit it waits, and nothing is lost."""
    ours, theirs = socket.socketpair()
    received = 0

    def read() -> None:
        nonlocal received
        reader = FrameReader()
        while received < 200:
            received += len(reader.feed(ours.recv(1 << 14)))

    with ours, theirs:
        channels = EngineChannels([theirs], max_backlog=200_000)
        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(200):
            channels.send(0, Tokens(b"x" * 100_000, b"", ()))
        while thread.is_alive():
            channels.receive(wait=False, until=time.monotonic() + 0.01)
        thread.join()
    assert received == 200


@given(owners=st.lists(st.integers(0, 3), min_size=1, max_size=40), data=st.data())
def test_a_step_is_split_without_loss(owners: list[int], data: st.DataObject) -> None:
    ids = np.array([owner << OWNER_SHIFT | n for n, owner in enumerate(owners)], dtype=np.int64)
    tokens = np.arange(len(owners), dtype=np.int64) * 7
    ends = data.draw(st.sets(st.sampled_from(ids.tolist())))
    finished = tuple(Finished(id, FinishReason.STOP, 0, 0, 0) for id in ends)
    starts = data.draw(st.sets(st.sampled_from(ids.tolist())))
    begun = tuple(Finished(id, FinishReason.STOP, 0, 0, 0, 5) for id in starts)
    joined, ended, started = {}, set(), set()
    for owner, message in split(StepResult(ids, tokens, finished, begun=begun), 4):
        ids_of_owner = np.frombuffer(message.ids, np.int64).tolist()
        assert {id >> OWNER_SHIFT for id in ids_of_owner} == {owner}
        assert ids_of_owner == sorted(ids_of_owner), "in the order of the step"
        joined |= dict(zip(ids_of_owner, np.frombuffer(message.tokens, np.int64).tolist(), strict=True))
        ended |= {end.id for end in message.finished}
        started |= {begun.id for begun in message.begun}
        assert {end.id for end in (*message.finished, *message.begun)} <= set(ids_of_owner)
    assert joined == dict(zip(ids.tolist(), tokens.tolist(), strict=True))
    assert ended == ends and started == starts


@given(owners=st.lists(st.integers(0, 3), max_size=20), k=st.integers(0, 3))
def test_logprobs_are_split_without_loss(owners: list[int], k: int) -> None:
    ids = np.array([owner << OWNER_SHIFT | n for n, owner in enumerate(owners)], dtype=np.int64)
    tokens = np.arange(len(ids) * (1 + k), dtype=np.int32).reshape(-1, 1 + k)
    step = StepLogprobs(ids, tokens, -tokens.astype(np.float32))
    joined = {}
    for owner, message in split_logprobs(step):
        ids_of_owner = dict(message.logprobs.of_requests())
        assert {id >> OWNER_SHIFT for id in ids_of_owner} == {owner}
        joined |= ids_of_owner
    assert joined == dict(step.of_requests()) and len(joined) == len(ids)


@pytest.mark.parametrize("spin_s", [0.0, 1.0])
def test_a_message_ends_the_wait_until_a_time(spin_s: float) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channels = EngineChannels([theirs])
        channels.spin_s = spin_s
        for wait in (False, True):
            begin = time.monotonic()
            assert channels.receive(wait=wait, until=begin + 0.02) == []
            assert time.monotonic() >= begin + 0.02
        assert channels.receive(wait=True, until=begin) == []
        assert channels.receive(wait=False, until=begin) == []
        used = time.thread_time()
        for _ in range(10):  # such a wait sleeps, also the part of a millisecond that poll does not know
            channels.receive(wait=False, until=time.monotonic() + 0.0029)
        assert time.thread_time() - used < 0.0145
        sent = threading.Timer(0.02, ours.sendall, [frame(msgspec.msgpack.encode(Discard(7)))])
        sent.start()
        assert channels.receive(wait=False, until=time.monotonic() + 600) == [(0, Discard(7))]
        sent.join()
