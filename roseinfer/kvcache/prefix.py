"""The prefix cache: finds full blocks of keys and values by the tokens up to their end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from roseinfer.batch import Ints
from roseinfer.kvcache.blocks import BlockAllocator


@dataclass(frozen=True)
class Reuse:
    """The cached part of a prompt: its first `tokens` tokens, in `blocks`, which are shared.

    Where the next token belongs into a shared block, that block is `copy_from`: the request writes to a copy
    of it (copy-on-write).
    """

    tokens: int
    blocks: Ints
    copy_from: Ints


class PrefixCache:
    """Maps a block's hash to the block.

    A hash covers all tokens up to the end of its block: 128 bits of BLAKE2b over the previous block's hash
    and the block's tokens, under a random key of this process. So equal hashes mean equal prefixes, and
    clients cannot construct collisions.
    """

    #: Whether anything is ever found.
    remembers = True

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self._allocator, self._block_size = allocator, block_size
        self._key = os.urandom(16)
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        #: Prompt tokens of the requests admitted since the last flush, and how many of them were cached.
        self.prompt_tokens = self.cached_tokens = 0
        allocator.on_evict = self._evict

    def hash(self, hashes: list[bytes], tokens: NDArray[np.int32], salt: bytes = b"") -> None:
        """Append the hashes of those full blocks of `tokens` `[n]` that `hashes` does not have yet. They
        depend on `salt`: 16 bytes that clients cannot choose, or none."""
        size = self._block_size
        for start in range(len(hashes) * size, len(tokens) - size + 1, size):
            parent = hashes[-1] if hashes else salt
            block = parent + tokens[start : start + size].tobytes()
            hashes.append(blake2b(block, digest_size=16, key=self._key).digest())

    def find(self, hashes: Sequence[bytes], num_tokens: int) -> Iterator[Reuse]:
        """Ways to reuse a prefix of a prompt of `num_tokens` tokens, the longest first.

        The last token is always computed, because its logits are wanted.
        """
        shared = []
        for key in hashes:
            block = self._block_of.get(key)
            if block is None:
                break
            shared.append(block)
        blocks = np.array(shared, dtype=np.int64)
        if len(blocks) * self._block_size == num_tokens:
            yield Reuse(num_tokens - 1, blocks[:-1], blocks[-1:])
            blocks = blocks[:-1]
        yield Reuse(len(blocks) * self._block_size, blocks, blocks[:0])

    def insert(self, hashes: Sequence[bytes], blocks: Ints) -> None:
        """Add `blocks` `[n]`, which have references, under `hashes`. A hash that is known keeps its block."""
        for key, block in zip(hashes, blocks.tolist(), strict=False):
            if key not in self._block_of:
                self._block_of[key] = block
                self._hash_of[block] = key
                self._allocator.keep(block)

    def flush(self) -> None:
        """Forget every block and start counting anew. Running requests keep their blocks."""
        for block in self._hash_of:
            self._allocator.forget(block)
        self._hash_of.clear()
        self._block_of.clear()
        self.prompt_tokens = self.cached_tokens = 0

    def check(self) -> None:
        """Raise AssertionError unless hashes and blocks belong to each other one to one."""
        if {block: key for key, block in self._block_of.items()} != self._hash_of:
            raise AssertionError("the prefix cache contradicts itself")

    def _evict(self, block: int) -> None:
        del self._block_of[self._hash_of.pop(block)]


class NoPrefixCache(PrefixCache):
    """Hashes nothing, and so never finds anything."""

    remembers = False

    def hash(self, hashes: list[bytes], tokens: NDArray[np.int32], salt: bytes = b"") -> None:
        pass
