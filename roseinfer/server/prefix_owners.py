"""Which replica was last given a prefix, known to all front ends: a table in shared memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

#: Entries; a prefix of 256 tokens takes 16, one of 8,192 takes 47.
_SLOTS = 1 << 16
#: The last bits of an entry are the replica and one; the others are of the prefix's hash.
_REPLICA = 0xFF
#: A prefix is looked up at its first so many blocks, and then at each so many.
_STRIDE = 16

#: The tokens of a prefix, and its hash.
PrefixHash = tuple[int, int]


class PrefixOwners:
    """Shared memory with the descriptor `fd`. `key` is the same random bytes in all front ends.

    It says who was asked to compute a prefix, not what is still in a cache: what has been evicted is computed
    again where it was. An entry is one word, which front ends write without a lock over what was there.
    """

    def __init__(self, fd: int, key: bytes) -> None:
        self.fd, self._key = fd, key
        self._entries = np.frombuffer(mmap.mmap(fd, 8 * _SLOTS), dtype=np.uint64)

    @classmethod
    def create(cls, key: bytes) -> PrefixOwners:
        """For the first front end; the others open its descriptor."""
        fd = os.memfd_create("roseinfer-prefixes")
        os.ftruncate(fd, 8 * _SLOTS)
        return cls(fd, key)

    def hashes(self, prompt: NDArray[np.int32], block_size: int) -> list[PrefixHash]:
        """Of the prefixes of `prompt` `[n]` that end with a block, the shortest first: each of the first
        _STRIDE blocks, then every so many."""
        found, start, parent = [], 0, b""
        blocks = len(prompt) // block_size
        for end in [*range(1, min(blocks, _STRIDE) + 1), *range(2 * _STRIDE, blocks + 1, _STRIDE)]:
            tokens = prompt[start : end * block_size].tobytes()
            parent = blake2b(parent + tokens, digest_size=8, key=self._key).digest()
            start = end * block_size
            found.append((start, int.from_bytes(parent, "little")))
        return found

    def cached(self, hashes: Sequence[PrefixHash]) -> dict[int, int]:
        """For each replica that was given some of these prefixes, the tokens of the longest."""
        found: dict[int, int] = {}
        for tokens, hash in hashes:
            entry = int(self._entries[hash % _SLOTS])
            if entry and entry | _REPLICA == hash | _REPLICA:
                found[(entry & _REPLICA) - 1] = tokens
        return found

    def put(self, hashes: Sequence[PrefixHash], replica: int) -> None:
        """`replica` computes all of these prefixes."""
        for _, hash in hashes:
            self._entries[hash % _SLOTS] = (hash & ~_REPLICA) | (replica + 1)

    def clear(self) -> None:
        """Nobody has any."""
        self._entries[:] = 0
