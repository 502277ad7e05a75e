"""A front end's side of several engines, with the engines' real sides of the channels at the other end."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

import numpy as np
import pytest

from roseinfer.config import ConfigError
from roseinfer.info import EngineInfo
from roseinfer.ipc.engine_channel import EngineChannels
from roseinfer.ipc.messages import (
    CheckBlocks,
    Discard,
    Done,
    Failed,
    Load,
    Query,
    Ready,
    Record,
    Recorded,
    Submit,
)
from roseinfer.request.params import SamplingParams
from roseinfer.server.engine_client import EngineClient
from roseinfer.server.http.errors import EngineDeadError, SilentEngineError
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.replicas import Replicas, together
from roseinfer.server.routing import PrefixOwners
from roseinfer.tracing.spans import span

from .clients import in_loop
from .test_engine_client import Kept

pytestmark = pytest.mark.integration


class Pair:
    """Two engines, and the front end's view of them; use it within an event loop."""

    def __init__(self) -> None:
        ends = [socket.socketpair() for _ in range(2)]
        self.channels = [EngineChannels([theirs]) for _, theirs in ends]
        self.sockets = [theirs for _, theirs in ends]
        self.counters = Counters.create(1, 2)
        self.died: asyncio.Queue[int] = asyncio.Queue()
        self.engines = [
            EngineClient(ours, 0, self.counters.of(n), partial(self.died.put_nowait, n), replica=n)
            for n, (ours, _) in enumerate(ends)
        ]
        self.replicas = Replicas(self.engines, self.counters, PrefixOwners.create(self.counters.salt))

    @classmethod
    async def started(cls, info: EngineInfo) -> Pair:
        """Return two engines that are ready."""
        pair = cls()
        for channel in pair.channels:
            channel.send(0, Ready(info))
        await pair.replicas.start()
        return pair

    async def got(self, replica: int) -> list[Any]:
        """Return the messages that have arrived at an engine, at least one message."""
        messages = await asyncio.to_thread(self.channels[replica].receive, wait=True)
        return [message for _, message in messages]

    def submit(self) -> int:
        receiver = Kept(asyncio.Event())
        return self.replicas.submit(np.array([1], np.int32), SamplingParams(1), [receiver], 0.0)[0]

    def close(self) -> None:
        self.replicas.stop()
        for sock in self.sockets:
            sock.close()


@in_loop
async def test_the_choices_of_a_prompt_are_spread(text_model: Any) -> None:
    """With the seeds that they would have at one engine."""
    pair = await Pair.started(text_model.llm.engine.info)
    receivers = [Kept(asyncio.Event())] * 5
    ids = pair.replicas.submit(np.array([1], np.int32), SamplingParams(1, seed=7), receivers, 0.0)
    messages = [message for n in range(2) for message in await pair.got(n)]
    submitted = [message for message in messages if isinstance(message, Submit)]
    assert [(message.choices, message.params.seed) for message in submitted] == [(3, 7), (2, 10)]
    assert [*ids] == [id for first in submitted for id in range(first.id, first.id + first.choices)]
    pair.close()


@in_loop
async def test_answers_come_from_one_and_orders_go_to_all(text_model: Any) -> None:
    pair = await Pair.started(text_model.llm.engine.info)
    ids = [pair.submit() for _ in range(4)]
    assert [[type(message) for message in await pair.got(n)] for n in range(2)] == [[Submit] * 2] * 2
    assert len({*ids}) == 4 and pair.counters.inflight == 4
    for id in ids:
        pair.replicas.discard(id)
    messages = [message for n in range(2) for message in await pair.got(n)]
    discarded = [message.id for message in messages if isinstance(message, Discard)]
    assert sorted(discarded) == sorted(ids) and pair.counters.inflight == 0
    order = asyncio.ensure_future(pair.replicas.order(CheckBlocks()))
    for n, answer in enumerate((Done(), Done("a block leaked"))):
        assert await pair.got(n) == [CheckBlocks()]
        pair.channels[n].send(0, answer)
    assert (await order).error == "a block leaked"
    loads = asyncio.ensure_future(pair.replicas.loads())
    for n in range(2):
        assert await pair.got(n) == [Query()]
        pair.channels[n].send(0, Load(n + 1, 5, n / 2, 0, 10, n))
    assert together(await loads) == Load(3, 10, 0.25, 0, 20, 1)
    pair.close()


@in_loop
async def test_a_silent_replica_gets_nothing(text_model: Any) -> None:
    pair = await Pair.started(text_model.llm.engine.info)
    pair.counters.of(0).set_silent(True)
    assert pair.replicas.alive and pair.replicas.silent
    for _ in range(3):
        pair.submit()
    assert len(await pair.got(1)) == 3 and pair.channels[0].receive(wait=False) == []
    pair.counters.of(1).set_silent(True)
    with pytest.raises(SilentEngineError):
        pair.submit()
    pair.sockets[1].close()
    assert await pair.died.get() == 1 and not pair.replicas.alive
    with pytest.raises(EngineDeadError):
        pair.submit()
    pair.close()


@in_loop
async def test_a_profile_of_every_replica_has_the_front_ends_ranges(text_model: Any) -> None:
    """From its own beginning to its own end."""
    pair = await Pair.started(text_model.llm.engine.info)
    names = []
    for n, channel in enumerate(pair.channels):
        order = asyncio.ensure_future(pair.engines[n].order(CheckBlocks()))
        assert await pair.got(n) == [CheckBlocks()]
        channel.send(0, Record())
        channel.send(0, Done())
        await order
        with span(f"{n} has begun"):
            pass
    for n, channel in enumerate(pair.channels):
        channel.send(0, Record(end=True))
        (recorded,) = await pair.got(n)
        assert isinstance(recorded, Recorded)
        names.append([each.name for each in recorded.spans if "has" in each.name])
        with span(f"{n} has ended"):
            pass
    assert names == [["0 has begun", "1 has begun"], ["1 has begun", "0 has ended"]]
    assert span("a") is span("b")  # nothing is recorded
    pair.close()


@pytest.mark.parametrize("says_why", [True, False])
@in_loop
async def test_one_that_cannot_start(text_model: Any, says_why: bool) -> None:
    pair = Pair()
    pair.channels[0].send(0, Ready(text_model.llm.engine.info))
    if says_why:
        pair.channels[1].send(0, Failed("too few"))
    else:
        pair.sockets[1].close()
    kind, why = (ConfigError, "too few") if says_why else (EngineDeadError, "has stopped")
    with pytest.raises(kind, match=why):
        await pair.replicas.start()
    assert pair.replicas.failed == 1
    pair.close()
