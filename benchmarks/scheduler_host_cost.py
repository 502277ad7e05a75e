"""What a decode step costs on the host, and what the prefix cache adds to a request, without a device.

    python -m benchmarks.scheduler_host_cost

CPU time in microseconds, the least of several rounds: a step by the number of running requests, and its
parts; a request from its arrival to its end, of two tokens, all prompts different.
"""

from __future__ import annotations

import time

import numpy as np

from roseinfer.batch import Batch, Ints
from roseinfer.engine.loop import Loop
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.prefix import NoPrefixCache, PrefixCache
from roseinfer.request.logprobs import StepLogprobs
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.policies import Policies
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler

ROUNDS, STEPS, CAPACITY, CONTEXT, BLOCK = 7, 300, 256, 1024, 16


class Nothing(Runner, Pending):
    """A device that takes no time: every token is 5."""

    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        self._tokens = np.full(len(batch.requests), 5)
        return self

    def tokens(self) -> Ints:
        return self._tokens

    def logprobs(self) -> StepLogprobs | None:
        return None


def prepared(requests: int) -> tuple[Scheduler, Running]:
    """A scheduler whose requests all decode, with contexts of 200 to 300 tokens and no end in sight."""
    running, allocator = Running(CAPACITY, CONTEXT, BLOCK), BlockAllocator(CAPACITY * CONTEXT // BLOCK)
    policies = Policies(CAPACITY, CAPACITY, CAPACITY * CONTEXT)
    scheduler = Scheduler(running, allocator, NoPrefixCache(allocator, BLOCK), policies, (50256,))
    for id, length in enumerate(np.random.default_rng(0).integers(200, 300, requests)):
        prompt = np.zeros(length, dtype=np.int32)
        scheduler.add(Request(id, prompt, SamplingParams(700), 0.0, prompt))
    one_step(scheduler, np.full(requests, 5))
    return scheduler, running


def one_step(scheduler: Scheduler, tokens: Ints) -> tuple[float, float, float]:
    """Seconds of prepare, launched and process by the wall clock; that of CPU time is too coarse for them."""
    start = time.perf_counter()
    batch = scheduler.prepare()
    assert batch is not None
    ready = time.perf_counter()
    scheduler.launched(batch)
    launched = time.perf_counter()
    scheduler.process(batch, tokens)
    return ready - start, launched - ready, time.perf_counter() - launched


def request_cost(kind: type[PrefixCache], length: int, requests: int = 64) -> float:
    """Seconds of CPU time a request."""
    blocks = requests * (length // BLOCK + 2)
    taken = []
    for seed in range(ROUNDS):
        running, allocator = Running(requests, length + BLOCK, BLOCK), BlockAllocator(blocks)
        policies = Policies(requests, requests, requests * length)
        scheduler = Scheduler(running, allocator, kind(allocator, BLOCK), policies, (50256,))
        prompts = np.random.default_rng(seed).integers(0, 50_000, (requests, length), dtype=np.int32)
        start = time.process_time()
        for id, prompt in enumerate(prompts):
            scheduler.add(Request(id, prompt, SamplingParams(2), 0.0, prompt))
        loop = Loop(scheduler, running, Nothing(), overlap=True)
        while loop.step() is not None:
            pass
        taken.append((time.process_time() - start) / requests)
    return min(taken)


def main() -> None:
    for length in (256, 1024, 4096):
        off, on = (request_cost(kind, length) * 1e6 for kind in (NoPrefixCache, PrefixCache))
        print(f"a request of {length} tokens: {off:.0f} us, with the prefix cache {on:.0f} us")
    for requests in (1, 64, 256):
        loops: list[float] = []
        parts: list[tuple[float, float, float]] = []
        for _ in range(ROUNDS):
            scheduler, running = prepared(requests)
            loop = Loop(scheduler, running, Nothing(), overlap=True)
            start = time.process_time()
            for _ in range(STEPS):
                loop.step()
            loops.append((time.process_time() - start) / STEPS)
            scheduler, _ = prepared(requests)
            parts += [one_step(scheduler, np.full(requests, 5)) for _ in range(STEPS)]
        prepare, launched, process = np.median(parts, axis=0) * 1e6
        print(
            f"{requests} running: loop {min(loops) * 1e6:.1f} us a step, "
            f"of which prepare {prepare:.1f}, launched {launched:.1f}, process {process:.1f}"
        )


if __name__ == "__main__":
    main()
