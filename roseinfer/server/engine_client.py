"""The front end's view of the engine process: submit, read tokens, discard."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roseinfer.config import ConfigError
from roseinfer.ipc.channel import AsyncChannel
from roseinfer.ipc.messages import (
    Discard,
    Failed,
    FromEngine,
    Load,
    Profiled,
    Query,
    Ready,
    StartProfile,
    StopProfile,
    Submit,
    Tokens,
)
from roseinfer.params import EngineInfo, Finished, SamplingParams
from roseinfer.server.engine_process import EngineProcess


class EngineDeadError(Exception):
    """The engine process is gone."""


class Mailbox:
    """Where the tokens of one HTTP request's answers arrive, in order: `(answer, token, end or None)`."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, int, Finished | None]] = deque()
        self._arrival = asyncio.Event()
        self._dead = False

    def put(self, answer: int, token: int, finished: Finished | None) -> None:
        self._items.append((answer, token, finished))
        self._arrival.set()

    def fail(self) -> None:
        self._dead = True
        self._arrival.set()

    async def take(self) -> list[tuple[int, int, Finished | None]]:
        """Everything that has arrived, at least one item. Raises EngineDeadError."""
        await self._arrival.wait()
        self._arrival.clear()
        if self._dead:
            raise EngineDeadError
        items = list(self._items)
        self._items.clear()
        return items


class EngineClient:
    """Talks to the engine process and routes its tokens. Use `await start()` before anything else.

    `on_death` is called when a started engine ends without having been asked to.
    """

    info: EngineInfo

    def __init__(self, process: EngineProcess, on_death: Callable[[], None]) -> None:
        self._process = process
        self._on_death = on_death
        self._streams: dict[int, tuple[Mailbox, int]] = {}
        self._queries: deque[asyncio.Future[Load]] = deque()
        self._profiles: deque[asyncio.Future[Profiled]] = deque()
        self._ids = itertools.count()
        self.alive = False

    @property
    def num_inflight(self) -> int:
        return len(self._streams)

    async def start(self) -> None:
        """Wait until the engine is ready. Raises ConfigError with the engine's reason."""
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Ready | Failed] = loop.create_future()
        _, self._channel = await loop.create_unix_connection(
            lambda: AsyncChannel[FromEngine](FromEngine, self._on_message, self._on_close),  # type: ignore[arg-type]
            sock=self._process.socket,
        )
        answer = await self._ready
        if isinstance(answer, Failed):
            raise ConfigError(answer.reason)
        self.info = answer.info
        self.alive = True

    def stop(self) -> None:
        """End the engine process."""
        self.alive = False
        self._process.stop()

    async def load(self) -> Load:
        """What the engine holds now. Raises EngineDeadError."""
        if not self.alive:
            raise EngineDeadError
        answer: asyncio.Future[Load] = asyncio.get_running_loop().create_future()
        self._queries.append(answer)
        self._channel.send(Query())
        return await answer

    async def profile(self, order: StartProfile | StopProfile) -> Profiled:
        """Start or end a profile of the engine. Raises EngineDeadError."""
        if not self.alive:
            raise EngineDeadError
        answer: asyncio.Future[Profiled] = asyncio.get_running_loop().create_future()
        self._profiles.append(answer)
        self._channel.send(order)
        return await answer

    def submit(self, prompt: NDArray[np.int32], params: SamplingParams, mailbox: Mailbox, answer: int) -> int:
        """Queue a prompt `[n]` whose tokens arrive in `mailbox` as `answer`. Returns the id to discard."""
        if not self.alive:
            raise EngineDeadError
        id = next(self._ids)
        self._streams[id] = (mailbox, answer)
        self._channel.send(Submit(id, prompt.tobytes(), params))
        return id

    def discard(self, id: int) -> None:
        """Forget a request; nothing happens if it has ended."""
        if self._streams.pop(id, None) is not None and self.alive:
            self._channel.send(Discard(id))

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case Tokens(ids, tokens, finished):
                ends = {end.id: end for end in finished}
                made = zip(_integers(ids), _integers(tokens), strict=True)
                for id, token in made:
                    stream = self._streams.get(id)
                    if stream is not None:
                        stream[0].put(stream[1], token, ends.get(id))
                for id in ends:
                    self._streams.pop(id, None)
            case Load():
                answer = self._queries.popleft()
                if not answer.done():
                    answer.set_result(message)
            case Profiled():
                done = self._profiles.popleft()
                if not done.done():
                    done.set_result(message)
            case Ready() | Failed():
                if not self._ready.done():
                    self._ready.set_result(message)

    def _on_close(self) -> None:
        if not self._ready.done():
            self._ready.set_result(
                Failed(f"the engine process ended while it was starting ({self._process.how_it_ended()})")
            )
        was_alive, self.alive = self.alive, False
        for mailbox, _ in self._streams.values():
            mailbox.fail()
        unanswered: list[asyncio.Future[Any]] = [*self._queries, *self._profiles]
        for answer in unanswered:
            if not answer.done():
                answer.set_exception(EngineDeadError())
        if was_alive:
            self._on_death()


def _integers(data: bytes) -> list[int]:
    values: list[int] = np.frombuffer(data, np.int64).tolist()
    return values
