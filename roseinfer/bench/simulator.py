"""The real scheduler and loop in virtual time: a cost model replaces the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roseinfer.batch import Batch, Ints
from roseinfer.bench.replay import Clock
from roseinfer.config import EngineConfig
from roseinfer.engine.loop import Loop
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.prefix import NoPrefixCache, PrefixCache
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.cost import StepCost
from roseinfer.scheduler.policies import Policies
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler, StepResult


class VirtualClock(Clock):
    """A clock that advances only by waits."""

    def __init__(self) -> None:
        self._now = 1.0

    def now(self) -> float:
        return self._now

    def wait_until(self, time_s: float) -> None:
        self._now = max(self._now, time_s)


class SimulatedRunner(Runner):
    """A simulated device, which computes one step after the other in the time given by `cost`; all tokens are
    0.

    The host takes `host` seconds before each launch.
    """

    def __init__(self, cost: StepCost, host: float, clock: Clock) -> None:
        self._cost, self._host, self._clock = cost, host, clock
        self._idle_from = 0.0

    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        self._clock.wait_until(self._clock.now() + self._host)
        self._idle_from = max(self._clock.now(), self._idle_from) + self._cost.seconds(batch)
        return _SimulatedPending(self._clock, self._idle_from, len(batch.requests))


class _SimulatedPending(Pending):
    def __init__(self, clock: Clock, done_at: float, count: int) -> None:
        self._clock, self._done_at, self._count = clock, done_at, count

    def tokens(self) -> Ints:
        self._clock.wait_until(self._done_at)
        return np.zeros(self._count, dtype=np.int64)


class SimulatedEngine:
    """An engine that runs in the time of `clock`. Settings that depend on the device are those of a GPU."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        policies: Policies,
        clock: Clock,
        *,
        max_model_len: int,
        num_blocks: int,
    ) -> None:
        running = Running(config.max_active_requests, max_model_len, config.block_size)
        allocator = BlockAllocator(num_blocks)
        prefixes = (PrefixCache if config.prefix_cache else NoPrefixCache)(allocator, config.block_size)
        self._scheduler = Scheduler(running, allocator, prefixes, policies, eos=(), clock=clock.now)
        overlap, late = config.overlap_schedule is not False, config.late_launch is not False
        self._loop = Loop(self._scheduler, running, runner, overlap=overlap, late=late, clock=clock.now)
        self._clock = clock

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def launch_at(self) -> float:
        return self._loop.launch_at

    @property
    def preemptions(self) -> int:
        return self._scheduler.preemptions

    def add(self, request_id: int, prompt: NDArray[np.int32], params: SamplingParams) -> None:
        """Queue a prompt `[n]`."""
        self._scheduler.add(Request(request_id, prompt, params, self._clock.now(), prompt))

    def step(self) -> StepResult | None:
        """Step the engine, and the clock by the time that the step takes."""
        return self._loop.step()
