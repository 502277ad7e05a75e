"""An engine process, started and ended by its parent."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

import msgspec

from roseinfer.config import REPLICA, REPLICAS, EngineConfig
from roseinfer.server.access import KEYS
from roseinfer.server.child import Child

#: Iterations for which a thread of GNU OpenMP busy-waits for the others before it sleeps, about 30 us. By
#: default it busy-waits without end: when another process wants a core, every layer of every step then waits
#: for a time slice of the operating system. Of 0 to 10,000 this is the fastest on an idle machine
#: (docs/notes/cpu-engine.md). The environment's GOMP_SPINCOUNT or OMP_WAIT_POLICY takes precedence.
SPIN = {"GOMP_SPINCOUNT": "3000"}

#: glibc asks the operating system for huge pages: a step on a CPU reads all weights, and with 124M parameters
#: it took a third less CPU time (docs/notes/cpu-engine.md). The environment's GLIBC_TUNABLES takes
#: precedence.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

#: Compiled GEMMs that oneDNN and PyTorch's layer above it cache, one for each number of tokens and shape of
#: weights. Each takes half a MiB and fragments the heap: the default of 1,024 takes 1.2 GiB, 32 less than
#: 64 MiB. Compiling one again costs 0.3 ms (docs/notes/soak.md). The environment's values take precedence.
KERNELS_KEPT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}


def environment(inherited: Mapping[str, str], replicas: int = 1, replica: int = 0) -> dict[str, str]:
    """Return the environment of engine process `replica` of `replicas`, without the API keys."""
    spin = {} if "OMP_WAIT_POLICY" in inherited else SPIN
    passed_on = {name: value for name, value in inherited.items() if name not in (KEYS, REPLICAS, REPLICA)}
    identity = {REPLICAS: str(replicas), REPLICA: str(replica)} if replicas > 1 else {}
    return {**HUGE_PAGES, **KERNELS_KEPT, **spin, **passed_on, **identity}


class EngineProcess:
    """Engine process `replica` of `replicas` on this machine, which starts loading on construction.

    `sockets` are the parent's ends of its channels, one for each front end. It ends when the first of them
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

    def stop(self) -> None:
        """Close the channels, wait until the process has ended, and kill it if it does not."""
        for sock in self.sockets:
            with contextlib.suppress(OSError):  # the process may be gone
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.child.wait_or_kill()
