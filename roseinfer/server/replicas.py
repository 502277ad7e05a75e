"""A front end's client of all engine replicas: each request goes to one of them, orders go to all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from roseinfer.config import ConfigError
from roseinfer.info import DraftCounts, EngineInfo
from roseinfer.ipc.messages import MAX_REPLICAS, REPLICA_SHIFT, Done, Load, Order
from roseinfer.request.params import Finished, SamplingParams
from roseinfer.server.engine_client import EngineClient, TokenReceiver
from roseinfer.server.http.errors import EngineDeadError, SilentEngineError
from roseinfer.server.metrics.counters import Counters
from roseinfer.server.routing import PrefixOwners, Router


class Replicas:
    """The clients `engines` of all replicas, in their order. Call `await start()` first."""

    def __init__(self, engines: Sequence[EngineClient], counters: Counters, owners: PrefixOwners) -> None:
        self._engines, self._counters, self._owners = engines, counters, owners
        self._reserved = 0
        #: The replica that could not start.
        self.failed = 0

    async def start(self) -> None:
        """Wait until all are ready. Raises ConfigError with the reason of the first that cannot start, and
        EngineDeadError where one ended."""
        starts = [asyncio.ensure_future(engine.start()) for engine in self._engines]
        await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
        results = [(index, start.exception()) for index, start in enumerate(starts) if start.done()]
        for start in starts:
            start.cancel()
        errors = [(index, error) for index, error in results if error is not None]
        for self.failed, error in sorted(errors, key=lambda entry: not isinstance(entry[1], ConfigError)):
            raise error
        config = self.info.config
        owners = self._owners if config.prefix_cache else None
        loads = [self._counters.of(index).load for index in range(len(self._engines))]
        self._router = Router(loads, owners, config.block_size)

    def stop(self) -> None:
        """Expect the channels to close from now on."""
        for engine in self._engines:
            engine.stop()

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def info(self) -> EngineInfo:
        """Settings of the engine, which all replicas share."""
        return self._engines[0].info

    @property
    def alive(self) -> bool:
        """True if all are; the server ends when one is not."""
        return all(engine.alive for engine in self._engines)

    @property
    def silent(self) -> bool:
        """True if one of them has work and does not respond."""
        return any(engine.silent for engine in self._engines)

    def watch(self) -> None:
        """Check that all respond. Call this about every second."""
        for engine in self._engines:
            engine.watch()

    async def loads(self) -> list[Load]:
        """Return the load of each; see EngineClient.load."""
        return list(await asyncio.gather(*(engine.load() for engine in self._engines)))

    async def flush(self) -> None:
        """Empty all prefix caches; see EngineClient.flush."""
        self._owners.clear()
        await asyncio.gather(*(engine.flush() for engine in self._engines))

    async def order(self, order: Order) -> Done:
        """Send an order to all, and return the first answer that has an error; see EngineClient.order."""
        answers = await asyncio.gather(*(engine.order(order) for engine in self._engines))
        return next((answer for answer in answers if answer.error is not None), Done())

    def submit(
        self,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        receivers: Sequence[TokenReceiver],
        received: float,
        client: int = 0,
        salt: bytes = b"",
    ) -> Sequence[int]:
        """Queue a prompt `[n]`, with equal parts of its choices at replicas that the router chooses among
        those that respond; see EngineClient.submit."""
        if len(self._engines) == 1:
            return self._engines[0].submit(prompt, params, receivers, received, client, salt)
        if not self.alive:
            raise EngineDeadError
        awake = [index for index, engine in enumerate(self._engines) if not engine.silent]
        if not awake:
            raise SilentEngineError
        ids: list[int] = []
        part = -(-len(receivers) // len(awake))
        for start in range(0, len(receivers), part):
            engine = self._engines[self._router.choose(prompt, awake, salt)]
            of_part = receivers[start : start + part]
            try:
                ids += engine.submit(prompt, params.choice(start), of_part, received, client, salt)
            except SilentEngineError:  # since now
                for id in ids:
                    self.discard(id)
                raise
        return ids

    def discard(self, id: int, end: Finished | None = None) -> None:
        """Drop a request; see EngineClient.discard."""
        self._engines[(id >> REPLICA_SHIFT) % MAX_REPLICAS].discard(id, end)

    @contextmanager
    def reserve(self, client: int, answers: int) -> Iterator[None]:
        """Count `answers` of `client` as in flight that are not submitted yet."""
        self._reserve(client, answers)
        try:
            yield
        finally:
            self._reserve(client, -answers)

    def _reserve(self, client: int, answers: int) -> None:
        self._reserved += answers
        self._counters.add_waiting(client, answers, 0)
        self._counters.set_inflight(self._reserved)


def together(loads: Sequence[Load]) -> Load:
    """Combine the loads of several replicas: sums, and means of shares."""
    names = ("running", "waiting", "preemptions", "prompt_tokens", "cached_tokens")
    sums = {name: sum(getattr(load, name) for load in loads) for name in names}
    usage, skew = (fmean(getattr(load, name) for load in loads) for name in ("kv_usage", "expert_skew"))
    errors = [load.step_cost_error for load in loads if load.step_cost_error is not None]
    error = fmean(errors) if errors else None
    drafts = [load.drafts for load in loads if load.drafts is not None]
    counts = DraftCounts.sum(drafts) if drafts else None
    return Load(kv_usage=usage, expert_skew=skew, step_cost_error=error, drafts=counts, **sums)
