"""A front end's side of the channel, with the engine's real side at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from roseinfer.ipc.engine_channel import EngineChannels
from roseinfer.ipc.messages import (
    CheckBlocks,
    Done,
    Load,
    PackedLogprobs,
    Query,
    Ready,
    StartProfile,
    Submit,
    Tokens,
)
from roseinfer.request.logprobs import StepLogprobs, TokenLogprobs
from roseinfer.request.params import Finished, FinishReason, SamplingParams
from roseinfer.server.engine_client import EngineClient, Spinner, Timeouts
from roseinfer.server.http.errors import HttpError
from roseinfer.server.metrics.counters import Counters
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

    def push(self, token: int, end: Finished | None) -> None:
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


async def turns_until_it_sleeps(seconds: float) -> int:
    """Count the loop's turns before it had nothing left to do, after a touch."""
    spinner = Spinner(seconds, count(100.0).__next__)  # a second passes between two looks at the clock
    spinner.touch()
    turns = 0
    while spinner.awake:
        turns += 1
        await asyncio.sleep(0)
    return turns


def test_a_touched_loop_turns_for_a_while() -> None:
    assert asyncio.run(turns_until_it_sleeps(5)) == 5


def test_without_a_while_it_sleeps_at_once() -> None:
    assert asyncio.run(turns_until_it_sleeps(0)) == 0
