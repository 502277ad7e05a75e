"""Which replica last computed a prefix: a hash table in shared memory of all front ends."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

#: Entries of the table; a prompt of 256 tokens takes 16, one of 8,192 takes 47.
_SLOTS = 1 << 16
#: The low bits of an entry are the replica's number plus 1; the others are those of the prefix's hash.
_REPLICA = 0xFF
#: Prefixes that are looked up end with each of the first _STRIDE blocks, then with every _STRIDE-th.
_STRIDE = 16

#: The number of tokens of a prefix, and its hash.
PrefixHash = tuple[int, int]


class PrefixOwners:
    """Shared memory with the file descriptor `fd`. `key`: the same random bytes in all front ends.

    The table says which replica was asked to compute a prefix, not what is still cached: an evicted prefix is
    recomputed where it was. An entry is one word, which front ends overwrite without a lock.
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
        """Hashes of the prefixes of `prompt` `[n]` that end with each of the first _STRIDE blocks, then with
        every _STRIDE-th block, the shortest first."""
        found, start, parent = [], 0, b""
        blocks = len(prompt) // block_size
        for end in [*range(1, min(blocks, _STRIDE) + 1), *range(2 * _STRIDE, blocks + 1, _STRIDE)]:
            tokens = prompt[start : end * block_size].tobytes()
            parent = blake2b(parent + tokens, digest_size=8, key=self._key).digest()
            start = end * block_size
            found.append((start, int.from_bytes(parent, "little")))
        return found

    def cached(self, hashes: Sequence[PrefixHash]) -> dict[int, int]:
        """For each replica that was given some of these prefixes, the number of tokens of the longest."""
        found: dict[int, int] = {}
        for tokens, hash in hashes:
            entry = int(self._entries[hash % _SLOTS])
            if entry and entry | _REPLICA == hash | _REPLICA:
                found[(entry & _REPLICA) - 1] = tokens
        return found

    def put(self, hashes: Sequence[PrefixHash], replica: int) -> None:
        """Record that `replica` computes all of these prefixes."""
        for _, hash in hashes:
            self._entries[hash % _SLOTS] = (hash & ~_REPLICA) | (replica + 1)

    def clear(self) -> None:
        """Empty the table."""
        self._entries[:] = 0
