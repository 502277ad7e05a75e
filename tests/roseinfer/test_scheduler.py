"""Invariants of blocks, batches and the queue, over random traffic, without a model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.kvcache.blocks import BlockAllocator, OutOfBlocksError
from roseinfer.params import SamplingParams
from roseinfer.scheduler.policies import Policies
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler

BLOCK, CONTEXT, EOS = 4, 64, 999


def request(id: int, prompt: int, max_tokens: int) -> Request:
    tokens = np.full(prompt, id, dtype=np.int32)
    return Request(id, tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True), float(id), tokens)


def make(num_blocks: int, rows: int, budget: int) -> tuple[Scheduler, Running, BlockAllocator]:
    running, allocator = Running(rows, CONTEXT, BLOCK), BlockAllocator(num_blocks)
    return Scheduler(running, allocator, Policies(rows, 4, budget), (EOS,)), running, allocator


Traffic = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(0, 6), st.booleans()),
    min_size=1,
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(traffic=Traffic, num_blocks=st.integers(10, 40), rows=st.integers(1, 8), budget=st.integers(1, 64))
def test_every_request_is_answered_once_and_no_block_leaks(
    traffic: list[tuple[int, int, int, bool]], num_blocks: int, rows: int, budget: int
) -> None:
    """Any arrivals, any aborts, any cache size that holds the longest request alone."""
    scheduler, running, allocator = make(num_blocks, rows, budget)
    pending = [(id, *rest) for id, rest in enumerate(traffic)]
    answered: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    aborted: set[int] = set()
    admitted_first: list[int] = []
    steps = 0
    while pending or scheduler.has_work:
        steps += 1
        assert steps < 5000, "no progress"
        while pending and pending[0][3] <= steps:
            id, prompt, max_tokens, _, _ = pending.pop(0)
            scheduler.add(request(id, prompt, max_tokens))
        for id, (_, _, _, abort) in enumerate(traffic):
            if abort and id not in aborted and steps % 5 == 4 and scheduler.discard(id):
                aborted.add(id)
        batch = scheduler.prepare()
        if batch is None:
            continue
        check_batch(batch, running, budget)
        scheduler.launched(batch)
        ids = running.ids[batch.requests].tolist()
        assert len(set(ids)) == len(ids)
        admitted_first += [id for id in ids[: len(batch.segments)] if not answered[id]]
        result = scheduler.process(batch, np.array(ids))
        answered.update(result.ids.tolist())
        ended.update(end.id for end in result.finished)
        allocator.check()
    assert allocator.num_free == num_blocks
    assert admitted_first == sorted(admitted_first), "first come, first served"
    for id, (_, max_tokens, _, _) in enumerate(traffic):
        if id in aborted:
            assert ended[id] == 0 and answered[id] < max_tokens
        else:
            assert ended[id] == 1 and answered[id] == max_tokens


def check_batch(batch, running: Running, budget: int) -> None:  # type: ignore[no-untyped-def]
    """Rows are written where their block tables say, nobody shares a place, and the budget holds."""
    assert len(set(batch.cache_slots.tolist())) == len(batch.cache_slots)
    prefill = [segment.count for segment in batch.segments]
    assert len(prefill) <= 1 or sum(prefill) <= budget
    assert batch.decode_start == sum(prefill)
    for row, position, slot in zip(
        batch.requests[len(prefill) :],
        batch.positions[batch.decode_start :],
        batch.cache_slots[batch.decode_start :],
        strict=True,
    ):
        assert slot == running.held_blocks(row)[position // BLOCK] * BLOCK + position % BLOCK
        assert position == running.length[row] - 1
    # Tokens of a request are its id: a row that reads another request's tokens shows.
    owners = np.repeat(running.ids[batch.requests], [*prefill, *[1] * len(batch.decode_lengths)])
    assert (batch.tokens == owners).all()


@given(st.lists(st.integers(1, 9), max_size=40), st.randoms())
def test_allocator_hands_out_each_block_once(sizes: list[int], random) -> None:  # type: ignore[no-untyped-def]
    allocator = BlockAllocator(50)
    held: list[np.ndarray] = []
    for size in sizes:
        if size <= allocator.num_free:
            held.append(allocator.take(size))
        else:
            with pytest.raises(OutOfBlocksError):
                allocator.take(size)
            allocator.release(held.pop(random.randrange(len(held))))
        allocator.check()
        everything = [block for blocks in held for block in blocks]
        assert len(set(everything)) == len(everything) == 50 - allocator.num_free


def test_shared_blocks_are_free_only_after_the_last_holder() -> None:
    allocator = BlockAllocator(4)
    blocks = allocator.take(3)
    allocator.share(blocks[:2])
    allocator.release(blocks)
    assert allocator.num_free == 2
    allocator.release(blocks[:2])
    assert allocator.num_free == 4
    allocator.check()


def test_check_finds_a_leak_and_a_double_release() -> None:
    allocator = BlockAllocator(4)
    blocks = allocator.take(2)
    allocator.release(blocks)
    allocator.release(blocks)
    with pytest.raises(AssertionError):
        allocator.check()
