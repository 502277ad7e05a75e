"""Routes a request to the replica with the least work, counting what its prefix cache saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from roseinfer.server.prefix_owners import PrefixOwners

#: Answers in flight, and tokens of prompts that wait.
ReplicaLoad = tuple[float, float]
#: An answer in flight counts as much work as this many prompt tokens.
IN_FLIGHT_TOKENS = 64


class Router:
    """A request's cost on a replica: the prompt tokens that wait there, IN_FLIGHT_TOKENS for each answer in
    flight, and the request's prompt tokens that are not cached there. Equal costs are served round-robin.

    Requests with a cached prefix thus go to its replica, until that has so much more work than another that
    the tokens saved do not make up for it.

    Front ends that choose at the same moment do not see each other's choice.

    Args:
        loads: The current work of each replica, from all front ends.
        owners: Which replica has which prefix; None: there is no prefix cache.
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
