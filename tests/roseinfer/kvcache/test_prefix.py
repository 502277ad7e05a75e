"""Tokens of a prompt that the prefix cache finds."""

from __future__ import annotations

import numpy as np

from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.prefix import PrefixCache

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
