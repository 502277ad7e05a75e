"""The cost of another client's flood, counted in steps of the engine."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import numpy as np
import pytest

from roseinfer.config import EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.engine.process import serve
from roseinfer.ipc.engine_channel import EngineChannels
from roseinfer.ipc.messages import Ready
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.scheduler import StepResult
from roseinfer.server.engine_client import EngineClient
from roseinfer.server.metrics.counters import Counters

from .test_engine_client import Kept

pytestmark = pytest.mark.integration


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
def test_a_strangers_token_comes_within_five_steps(
    engine: Engine, requests: int, choices: int, tokens: int, leaves: bool
) -> None:
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
