"""An engine process, started and ended by its parent."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from types import TracebackType

import msgspec

from roseinfer.config import REPLICA, REPLICAS, EngineConfig
from roseinfer.server.access import KEYS
from roseinfer.server.child import Child

#: Turns for which a thread of GNU OpenMP waits awake for the others before it sleeps, about 30 us. Its own
#: default is without end: when another process wants a core, every layer of every step then waits for a time
#: slice of the scheduler. Of 0 to 10,000 turns this is the fastest on an idle machine
#: (docs/notes/cpu-engine.md). The environment's GOMP_SPINCOUNT or OMP_WAIT_POLICY wins.
SPIN = {"GOMP_SPINCOUNT": "3000"}

#: glibc asks the kernel for huge pages: a step on a CPU reads all weights, and one of 124M parameters took a
#: third less CPU time with them (docs/notes/cpu-engine.md). The environment's GLIBC_TUNABLES wins.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

#: Matrix products that oneDNN and PyTorch's layer above it keep compiled, one for each number of tokens and
#: shape of weights. Each takes half a MiB and leaves the heap in pieces: their own 1,024 take 1.2 GiB, 32
#: less than 64 MiB. To compile one again costs 0.3 ms (docs/notes/soak.md). The environment's values win.
KERNELS_KEPT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}


def environment(inherited: Mapping[str, str], replicas: int = 1, replica: int = 0) -> dict[str, str]:
    """What number `replica` of `replicas` engine processes is started with: not the API keys."""
    spin = {} if "OMP_WAIT_POLICY" in inherited else SPIN
    needed = {name: value for name, value in inherited.items() if name not in (KEYS, REPLICAS, REPLICA)}
    several = {REPLICAS: str(replicas), REPLICA: str(replica)} if replicas > 1 else {}
    return {**HUGE_PAGES, **KERNELS_KEPT, **spin, **needed, **several}


class EngineProcess:
    """Starts loading at once, number `replica` of `replicas` that share the machine; leaving the context ends
    it.

    `sockets` are the near sides of its channels, one for each front end. It ends when the first of them
    closes, and so never outlives the parent.
    """

    def __init__(
        self,
        config: EngineConfig,
        front_ends: int,
        module: str = "roseinfer.engine.process",
        replicas: int = 1,
        replica: int = 0,
    ) -> None:
        pairs = [socket.socketpair() for _ in range(front_ends)]
        self.sockets = [ours for ours, _ in pairs]
        theirs = [end for _, end in pairs]
        arguments = [msgspec.json.encode(config).decode(), *(str(end.fileno()) for end in theirs)]
        self.child = Child(module, arguments, theirs, environment=environment(os.environ, replicas, replica))

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the channels, wait until the process has ended, and kill it if it does not."""
        for sock in self.sockets:
            with contextlib.suppress(OSError):  # the process may be gone
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.child.wait_or_kill()
