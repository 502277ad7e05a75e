"""Blocks of the cache: their owners over random traffic, and tokens that the prefix cache finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.kvcache.blocks import BlockAllocator, OutOfBlocksError
from roseinfer.kvcache.prefix import PrefixCache


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


SIZE = 4


def tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def make(num_blocks: int = 8) -> tuple[BlockAllocator, PrefixCache]:
    allocator = BlockAllocator(num_blocks)
    return allocator, PrefixCache(allocator, SIZE)


def hashes(cache: PrefixCache, prompt: np.ndarray) -> list[bytes]:
    keys: list[bytes] = []
    cache.hash(keys, prompt)
    return keys


def test_a_hash_covers_everything_before_it() -> None:
    _, cache = make()
    first = hashes(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8))
    second = hashes(cache, tokens(0, 2, 3, 4, 5, 6, 7, 8))
    assert len(first) == 2 and not set(first) & set(second)
    grown = hashes(cache, tokens(1, 2, 3, 4, 5))
    assert grown == first[:1]
    cache.hash(grown, tokens(1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert grown == first
    assert hashes(make()[1], tokens(1, 2, 3, 4)) != first[:1], "the key belongs to one cache"


def test_the_longest_chain_is_found_and_the_last_token_is_left_to_compute() -> None:
    allocator, cache = make()
    keys, blocks = hashes(cache, np.arange(8, dtype=np.int32)), allocator.allocate(2)
    cache.insert(keys, blocks)
    allocator.release(blocks)
    (longer,) = cache.find(hashes(cache, np.arange(11, dtype=np.int32)), 11)
    assert longer.tokens == 8 and (longer.blocks == blocks).all() and not len(longer.copy_from)
    copied, whole = cache.find(keys, 8)
    assert (
        copied.tokens == 7 and (copied.blocks == blocks[:1]).all() and (copied.copy_from == blocks[1:]).all()
    )
    assert whole.tokens == 4 and (whole.blocks == blocks[:1]).all() and not len(whole.copy_from)
    (nothing,) = cache.find(hashes(cache, tokens(9, 9, 9, 9, 9)), 5)
    assert nothing.tokens == 0 and not len(nothing.blocks)
    cache.check()


def test_what_is_evicted_or_flushed_is_not_found() -> None:
    allocator, cache = make(3)
    keys, blocks = hashes(cache, np.arange(12, dtype=np.int32)), allocator.allocate(3)
    cache.insert(keys, blocks)
    allocator.release(blocks)
    second = allocator.allocate(1)
    assert [reuse.tokens for reuse in cache.find(keys, 12)] == [8], "the end of the chain goes first"
    cache.check()
    cache.flush()
    assert [reuse.tokens for reuse in cache.find(keys, 12)] == [0]
    assert len(allocator.evictable) == 0
    allocator.release(second)
    allocator.check()


def test_equal_blocks_of_two_requests_are_kept_once() -> None:
    allocator, cache = make(2)
    keys, first, second = hashes(cache, tokens(1, 2, 3, 4)), allocator.allocate(1), allocator.allocate(1)
    cache.insert(keys, first)
    cache.insert(keys, second)
    allocator.release(second)
    assert len(allocator.evictable) == 0 and allocator.num_free == 1
    allocator.release(first)
    assert len(allocator.evictable) == 1
    cache.check()
    allocator.check()
