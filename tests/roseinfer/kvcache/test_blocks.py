"""The owners of blocks, over random traffic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.kvcache.blocks import BlockAllocator, OutOfBlocksError


@given(st.lists(st.integers(1, 9), max_size=40), st.randoms())
def test_allocator_hands_out_each_block_once(sizes: list[int], random) -> None:  # type: ignore[no-untyped-def]
    allocator = BlockAllocator(50)
    allocated: list[np.ndarray] = []
    for size in sizes:
        if size <= allocator.num_free:
            allocated.append(allocator.allocate(size))
        else:
            with pytest.raises(OutOfBlocksError):
                allocator.allocate(size)
            allocator.release(allocated.pop(random.randrange(len(allocated))))
        allocator.check()
        everything = [block for blocks in allocated for block in blocks]
        assert len(set(everything)) == len(everything) == 50 - allocator.num_free


def test_shared_blocks_are_free_only_after_the_last_holder() -> None:
    allocator = BlockAllocator(4)
    blocks = allocator.allocate(3)
    allocator.share(blocks[:2])
    allocator.release(blocks)
    assert allocator.num_free == 2
    allocator.release(blocks[:2])
    assert allocator.num_free == 4
    allocator.check()


def test_two_holders_of_a_block_may_let_go_at_once() -> None:
    allocator = BlockAllocator(5)
    shared = allocator.allocate(2)
    allocator.share(shared)
    allocator.keep(int(shared[0]))
    other = allocator.allocate(2)
    allocator.release(np.concatenate([shared, other[:1], shared, other[1:]]))
    assert allocator.num_free == 5 and len(allocator.evictable) == 1
    allocator.check()


def test_check_finds_a_leak_and_a_double_release() -> None:
    allocator = BlockAllocator(4)
    blocks = allocator.allocate(2)
    allocator.release(blocks)
    allocator.release(blocks)
    with pytest.raises(AssertionError):
        allocator.check()


def test_kept_blocks_are_handed_out_last_and_the_oldest_of_them_first() -> None:
    allocator = BlockAllocator(4)
    evicted: list[int] = []
    allocator.on_evict = evicted.append
    first, second = allocator.allocate(2), allocator.allocate(1)
    for block in [*first.tolist(), *second.tolist()]:
        allocator.keep(block)
    allocator.release(second)
    allocator.release(first)
    assert allocator.num_free == 4 and len(allocator.evictable) == 3
    assert allocator.allocate(1) not in [*first, *second] and not evicted
    # The one that was released first, then the end of the other chain before its beginning.
    allocator.allocate(2)
    assert evicted == [second[0], first[1]]
    allocator.share(first[:1])
    assert allocator.num_free == 0
    with pytest.raises(OutOfBlocksError):
        allocator.allocate(1)
    allocator.check()
