"""Routes a request to the replica with the least work, counting the work that its prefix cache saves."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
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
#: Answers in flight, and tokens of prompts that wait.
ReplicaLoad = tuple[float, float]
#: An answer in flight counts as much work as this many prompt tokens.
IN_FLIGHT_TOKENS = 64


class PrefixOwners:
    """A hash table in shared memory of all front ends, with the replica that was last asked to compute each
    prefix. `fd`: its file descriptor; `key`: the same random bytes in all front ends.

    It does not say what is still cached: an evicted prefix is
    recomputed where it was. An entry is one word, which front ends overwrite without a lock.
    """

    def __init__(self, fd: int, key: bytes) -> None:
        self.fd, self._key = fd, key
        self._entries = np.frombuffer(mmap.mmap(fd, 8 * _SLOTS), dtype=np.uint64)

    @classmethod
    def create(cls, key: bytes) -> PrefixOwners:
        """Create the table, for the first front end; the others open its descriptor."""
        fd = os.memfd_create("roseinfer-prefixes")
        os.ftruncate(fd, 8 * _SLOTS)
        return cls(fd, key)

    def hashes(self, prompt: NDArray[np.int32], block_size: int, salt: bytes = b"") -> list[PrefixHash]:
        """Hash the prefixes of `prompt` `[n]` that end with each of the first _STRIDE blocks, then with
        every _STRIDE-th block, the shortest first. They differ with `salt`."""
        hashes, start, parent = [], 0, salt
        blocks = len(prompt) // block_size
        for end in [*range(1, min(blocks, _STRIDE) + 1), *range(2 * _STRIDE, blocks + 1, _STRIDE)]:
            tokens = prompt[start : end * block_size].tobytes()
            parent = blake2b(parent + tokens, digest_size=8, key=self._key).digest()
            start = end * block_size
            hashes.append((start, int.from_bytes(parent, "little")))
        return hashes

    def cached(self, hashes: Sequence[PrefixHash]) -> dict[int, int]:
        """Return the number of tokens of the longest of these prefixes that each replica was given; replicas
        without one are left out."""
        cached: dict[int, int] = {}
        for tokens, hash in hashes:
            entry = int(self._entries[hash % _SLOTS])
            if entry and entry | _REPLICA == hash | _REPLICA:
                cached[(entry & _REPLICA) - 1] = tokens
        return cached

    def put(self, hashes: Sequence[PrefixHash], replica: int) -> None:
        """Record that `replica` computes all of these prefixes."""
        for _, hash in hashes:
            self._entries[hash % _SLOTS] = (hash & ~_REPLICA) | (replica + 1)

    def clear(self) -> None:
        """Empty the table."""
        self._entries[:] = 0


class Router:
    """A request's cost on a replica: the prompt tokens that wait there, IN_FLIGHT_TOKENS for each answer in
    flight, and the request's prompt tokens that are not cached there. Equal costs are served round-robin.

    Requests with a cached prefix thus go to its replica, until that has so much more work than another that
    the tokens saved do not make up for it.

    Front ends that choose at the same moment do not see each other's choice.

    Args:
        loads: The current work of each replica, from all front ends.
        owners: The replica of each prefix; None: there is no prefix cache.
    """

    def __init__(
        self, loads: Sequence[Callable[[], ReplicaLoad]], owners: PrefixOwners | None, block_size: int
    ) -> None:
        self._loads, self._owners, self._block_size = loads, owners, block_size
        self._last = -1

    def choose(self, prompt: NDArray[np.int32], among: Sequence[int], salt: bytes = b"") -> int:
        """Choose the replica, one of `among`, that is to answer `prompt` `[n]` with the prefix cache of
        `salt`."""
        hashes = [] if self._owners is None else self._owners.hashes(prompt, self._block_size, salt)
        saved = {} if self._owners is None else self._owners.cached(hashes)

        def cost(replica: int) -> tuple[float, int]:
            in_flight, waiting = self._loads[replica]()
            work = IN_FLIGHT_TOKENS * in_flight + waiting - saved.get(replica, 0)
            return work, (replica - self._last - 1) % len(self._loads)

        self._last = min(among, key=cost)
        if self._owners is not None:
            self._owners.put(hashes, self._last)
        return self._last
