"""A front end's side of the channels to engines, with the engines' real sides at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.engine.process import serve
from roseinfer.info import EngineInfo
from roseinfer.ipc.engine_channel import EngineChannels
from roseinfer.ipc.messages import (
    MAX_CHOICES,
    CheckBlocks,
    Discard,
    Done,
    Failed,
    Load,
    PackedLogprobs,
    Query,
    Ready,
    Record,
    Recorded,
    StartProfile,
    Submit,
    Tokens,
)
from roseinfer.request.logprobs import StepLogprobs, TokenLogprobs
from roseinfer.request.params import Finished, FinishReason, SamplingParams
from roseinfer.scheduler.scheduler import StepResult
from roseinfer.server.engine_client import EngineClient, Spinner, Timeouts
from roseinfer.server.http.errors import EngineDeadError, HttpError, SilentEngineError
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.replicas import Replicas, together
from roseinfer.server.routing import PrefixOwners
from roseinfer.tracing.spans import span
from tests.roseinfer.server.clients import in_loop

pytestmark = pytest.mark.integration


class Kept:
    """Keeps the calls that it gets; `fails_in`: the method that raises."""

    def __init__(self, ended: asyncio.Event, fails_in: str = "") -> None:
        self._ended, self._fails_in = ended, fails_in
        self.tokens: list[int] = []
        self.error: HttpError | None = None

    def begin(self, begun: Finished) -> None:
        pass

    def add_logprobs(self, logprobs: TokenLogprobs) -> None:
        assert self._fails_in != "add_logprobs"

    def add_prompt_logprobs(self, position: int, logprobs: TokenLogprobs) -> None:
        raise AssertionError("nobody asked")

    def push(self, token: int, end: Finished | None, more: bool = False) -> None:
        assert self._fails_in != "push"
        self.tokens.append(token)
        if end is not None:
            self._ended.set()

    def fail(self, error: HttpError) -> None:
        self.error = error


@contextlib.asynccontextmanager
async def connected(
    model: Any, died: asyncio.Event | None = None, timeouts: Timeouts | None = None
) -> AsyncIterator[tuple[EngineClient, EngineChannels, socket.socket]]:
    """A client that has started, and its engine's side; `died` is set when the engine ends."""
    ours, theirs = socket.socketpair()
    with theirs:
        engine = EngineChannels([theirs])
        engine.send(0, Ready(model.llm.engine.info))
        on_death = (died or asyncio.Event()).set
        client = EngineClient(ours, 0, Counters.create(1).of(0), on_death, timeouts)
        await client.start()
        yield client, engine, theirs
        client.stop()


@in_loop
async def test_an_error_in_one_answer_ends_that_answer_alone(text_model: Any) -> None:
    died, ended = asyncio.Event(), asyncio.Event()
    async with connected(text_model, died) as (client, engine, _):
        broken = [Kept(ended, "push"), Kept(ended, "add_logprobs")]
        whole = Kept(ended)
        prompt, params = np.array([1], dtype=np.int32), SamplingParams(2)
        ids = np.array(client.submit(prompt, params, [*broken, whole], 0.0))
        sent = [message for _, message in engine.receive(wait=True)]
        assert [message.choices for message in sent if isinstance(message, Submit)] == [3]
        last = Finished(int(ids[2]), FinishReason.LENGTH, 0, 0, 0)
        for finished in ((), (last,)):
            logprobs = StepLogprobs(ids, np.zeros((3, 1), np.int32), np.zeros((3, 1), np.float32))
            engine.send(0, PackedLogprobs.of(logprobs))
            engine.send(0, Tokens(ids.tobytes(), np.array([5, 6, 7]).tobytes(), finished))
        await ended.wait()
        assert whole.tokens == [7, 7] and whole.error is None
        assert [message.error.status for message in broken if message.error is not None] == [500, 500]
        assert client.alive and not died.is_set()


@in_loop
async def test_questions_end_whatever_the_engine_does(text_model: Any) -> None:
    """A message that cannot be sent or is not answered ends its call, and later ones work."""
    timeouts = Timeouts(answer=0.05, load=0.05)
    async with connected(text_model, timeouts=timeouts) as (client, engine, _):
        with pytest.raises(OverflowError):
            await client.order(StartProfile("folder", 2**64, False))
        assert (await client.load()).running == 0  # the last that is known
        for question in (client.flush, lambda: client.order(CheckBlocks())):
            with pytest.raises(HttpError) as silent:
                await question()
            assert silent.value.status == 503
        timeouts.answer = timeouts.load = 60.0  # answers come in time now, however long they take
        for _ in range(2):
            engine.send(0, Load(1, 0, 0.0, 0, 0, 0))
        engine.send(0, Done("late"))
        load, order = asyncio.ensure_future(client.load()), asyncio.ensure_future(client.order(CheckBlocks()))
        await asyncio.sleep(0.05)
        engine.send(0, Load(2, 0, 0.0, 0, 0, 0))
        engine.send(0, Done("in time"))
        assert (await load).running == 2 and (await order).error == "in time"


def test_a_sign_of_life_that_does_not_come(text_model: Any) -> None:
    """Nobody waits for it: when the engine ends, the log has no error of it."""
    logged: list[dict[str, Any]] = []

    @in_loop
    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        died = asyncio.Event()
        async with connected(text_model, died, Timeouts(silence=-1.0)) as (client, engine, theirs):
            client.submit(np.array([1], dtype=np.int32), SamplingParams(2), [Kept(asyncio.Event())], 0.0)
            client.watch()
            assert [type(message) for _, message in engine.receive(wait=True)] == [Submit, Query]
            theirs.close()
            await died.wait()

    test()
    gc.collect()
    assert not logged


async def turns_until_it_sleeps(seconds: float, calls: Sequence[str] = ("touch",)) -> int:
    """Count the loop's turns before it had nothing left to do, after these calls of the spinner."""
    spinner = Spinner(seconds, count(100.0).__next__)  # a second passes between two looks at the clock
    for call in calls:
        getattr(spinner, call)()
    turns = 0
    while spinner.awake:
        turns += 1
        await asyncio.sleep(0)
    return turns


def test_a_touched_loop_turns_for_a_while() -> None:
    assert asyncio.run(turns_until_it_sleeps(5)) == 5


def test_without_a_while_it_sleeps_at_once() -> None:
    assert asyncio.run(turns_until_it_sleeps(0)) == 0


def test_a_loop_that_rests_sleeps_and_wakes_up_at_the_next_touch() -> None:
    assert asyncio.run(turns_until_it_sleeps(5, ["touch", "rest"])) == 1
    assert asyncio.run(turns_until_it_sleeps(5, ["touch", "rest", "touch"])) == 6


@in_loop
async def test_a_front_end_polls_for_first_tokens_and_sleeps_between_the_others(text_model: Any) -> None:
    info = text_model.llm.engine.info
    ours, theirs = socket.socketpair()
    with theirs:
        engine = EngineChannels([theirs])
        engine.send(0, Ready(msgspec.structs.replace(info, config=replace(info.config, spin_ms=60e3))))
        client = EngineClient(ours, 0, Counters.create(1).of(0), lambda: None)
        await client.start()
        polled, tokens = [], asyncio.Queue[int]()
        prompt, params = np.array([1], dtype=np.int32), SamplingParams(2)
        for _ in range(2):
            receiver = Kept(asyncio.Event())
            receiver.push = lambda token, end, more=False: tokens.put_nowait(token)  # type: ignore[method-assign]
            [id] = client.submit(prompt, params, [receiver], 0.0)
            polled.append(client.spinner.awake)
        ids = np.array([id])
        client.discard(id - MAX_CHOICES)
        for finished in ((), (Finished(id, FinishReason.LENGTH, 0, 0, 0),)):
            engine.send(0, Tokens(ids.tobytes(), np.array([5]).tobytes(), finished))
            await tokens.get()
            polled.append(client.spinner.awake)
        assert polled == [True, True, False, True]
        client.stop()


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


class Stepping:
    """An engine that counts its steps, before each of which a front end does all that it can."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop, self.steps = engine, loop, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> StepResult | None:
        asyncio.run_coroutine_threadsafe(self._front_end_turns(), self._loop).result(60)
        self.steps += 1
        return self._engine.step()

    @staticmethod
    async def _front_end_turns() -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture(scope="module")
def engine(text_model: Any) -> Engine:
    return Engine(
        EngineConfig(str(text_model.folder), device="cpu", dtype="fp32", kv_tokens=4096, warmup=False)
    )


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(
    ("requests", "choices", "tokens"), [(60, 128, 800), (1500, 1, 800), (3000, 4, 2)], ids=str
)
def test_a_strangers_token_comes_within_five_steps(engine, requests, choices, tokens, leaves):
    """Whatever another client has submitted just before, or withdrawn."""

    async def test() -> int:
        ours, theirs = socket.socketpair()
        stepping: Any = Stepping(engine, asyncio.get_running_loop())
        channels = EngineChannels([theirs])
        channels.send(0, Ready(engine.info))
        client = EngineClient(ours, 0, Counters.create(1).of(0), lambda: None)
        await client.start()

        def serve_until_closed() -> None:
            with pytest.raises(EOFError):
                serve(stepping, channels)

        thread = threading.Thread(target=serve_until_closed)
        thread.start()
        flooding, ended = [Kept(asyncio.Event())] * choices, asyncio.Event()
        prompt, params = np.full(tokens, 5, np.int32), SamplingParams(40, ignore_eos=True)
        ids = [id for _ in range(requests) for id in client.submit(prompt, params, flooding, 0.0, 1)]
        if leaves:
            for id in ids:
                client.discard(id)
        before = stepping.steps
        client.submit(prompt[:1], SamplingParams(1), [Kept(ended)], 0.0, 2)
        await ended.wait()
        waited: int = stepping.steps - before
        for id in ids:
            client.discard(id)
        assert (await client.load()).waiting == 0
        client.stop()
        ours.shutdown(socket.SHUT_WR)
        await asyncio.to_thread(thread.join)
        theirs.close()
        while engine.has_work:  # steps that were launched
            engine.step()
        engine.check_idle()
        return waited

    assert asyncio.run(asyncio.wait_for(test(), 300)) <= 5
