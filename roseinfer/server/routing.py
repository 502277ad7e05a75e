"""Which replica answers a request: the one with the least to do, what its cache spares it included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from roseinfer.server.prefix_owners import PrefixOwners

#: Answers in flight, and tokens of prompts that wait.
ReplicaLoad = tuple[float, float]
#: An answer in flight is as much to do as so many prompt tokens.
IN_FLIGHT_TOKENS = 64


class Router:
    """A request costs the tokens that wait before it, IN_FLIGHT_TOKENS for each answer in flight, and the
    tokens of its prompt that are not in the replica's cache. Where it costs the same, replicas take turns.

    A prefix that is found draws its next request to where it is, until that replica has so much more to do
    than another that the tokens spared do not make up for it.

    Front ends that choose at the same moment do not see each other's choice.

    Args:
        loads: What each replica has to do now, in all front ends.
        owners: Who has which prefix; None: there is no prefix cache.
    """

    def __init__(
        self, loads: Sequence[Callable[[], ReplicaLoad]], owners: PrefixOwners | None, block_size: int
    ) -> None:
        self._loads, self._owners, self._block_size = loads, owners, block_size
        self._last = -1

    def choose(self, prompt: NDArray[np.int32], among: Sequence[int]) -> int:
        """The replica, one of `among`, that is to answer `prompt` `[n]`."""
        hashes = [] if self._owners is None else self._owners.hashes(prompt, self._block_size)
        spared = {} if self._owners is None else self._owners.cached(hashes)

        def cost(replica: int) -> tuple[float, int]:
            in_flight, waiting = self._loads[replica]()
            work = IN_FLIGHT_TOKENS * in_flight + waiting - spared.get(replica, 0)
            return work, (replica - self._last - 1) % len(self._loads)

        self._last = min(among, key=cost)
        if self._owners is not None:
            self._owners.put(hashes, self._last)
        return self._last
