"""The front end's view of the engine process: submit, read tokens, discard."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import socket
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.process import run
from roseinfer.ipc.channel import AsyncChannel
from roseinfer.ipc.messages import Discard, Failed, FromEngine, Ready, Submit, Tokens
from roseinfer.params import EngineInfo, Finished, SamplingParams

#: Seconds that the engine process gets to end by itself.
STOP_TIMEOUT = 5.0


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
    """Starts the engine process and routes its tokens. Use `await start()` before anything else."""

    info: EngineInfo

    def __init__(self, config: EngineConfig, on_death: Callable[[], None]) -> None:
        self._config = config
        self._on_death = on_death
        self._streams: dict[int, tuple[Mailbox, int]] = {}
        self._ids = itertools.count()
        self.alive = False

    @property
    def num_inflight(self) -> int:
        return len(self._streams)

    async def start(self) -> None:
        """Wait until the engine is ready. Raises ConfigError with the engine's reason."""
        ours, theirs = socket.socketpair()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=run, args=(self._config, theirs), name="engine", daemon=True)
        self._process.start()
        theirs.close()
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Ready | Failed] = loop.create_future()
        _, self._channel = await loop.create_unix_connection(
            lambda: AsyncChannel[FromEngine](FromEngine, self._on_message, self._on_close),  # type: ignore[arg-type]
            sock=ours,
        )
        answer = await self._ready
        if isinstance(answer, Failed):
            raise ConfigError(answer.reason)
        self.info = answer.info
        self.alive = True

    def stop(self) -> None:
        """End the engine process."""
        self._channel.close()
        self._process.join(STOP_TIMEOUT)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

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
            case Ready() | Failed():
                if not self._ready.done():
                    self._ready.set_result(message)

    def _on_close(self) -> None:
        if not self._ready.done():
            self._ready.set_result(Failed("the engine process ended while it was starting"))
        was_alive, self.alive = self.alive, False
        for mailbox, _ in self._streams.values():
            mailbox.fail()
        if was_alive:
            self._on_death()


def _integers(data: bytes) -> list[int]:
    values: list[int] = np.frombuffer(data, np.int64).tolist()
    return values
