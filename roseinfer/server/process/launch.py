"""Launch of a server: its socket, its engine processes and its front ends, which load at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack

import msgspec

from roseinfer.config import REPLICA, REPLICAS, ConfigError, EngineConfig
from roseinfer.model_folder import model_folder
from roseinfer.server.access import KEYS, api_keys, check_exposure
from roseinfer.server.child import Child
from roseinfer.server.config import ServerConfig

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

#: Bytes that a front end's channel to an engine holds: 64 prompts of 8,192 tokens are then read at once.
CHANNEL_BYTES = 2 << 20


def launch(engine: EngineConfig, server: ServerConfig, module: str = "roseinfer.engine.process") -> int:
    """Serve until a signal to stop. Returns the process's exit code. Raises ConfigError before serving."""
    model_folder(engine.model)  # no process is started for a model that is not there
    front_ends, replicas = server.num_front_ends, server.data_parallel_size
    keys = api_keys(server.api_key_file)
    _allow_many_connections()
    with ExitStack() as stack:
        listener = stack.enter_context(bind(server.host, server.port))
        check_exposure(listener, keys, server.insecure)
        engines = [EngineProcess(engine, front_ends, module, replicas, index) for index in range(replicas)]
        for process in engines:
            stack.callback(process.stop)
        # Imported while the engine loads.
        import uvloop

        from roseinfer.server.metrics.counters import Counters
        from roseinfer.server.process.front_end import Settings, Shared
        from roseinfer.server.process.front_ends import FrontEnds
        from roseinfer.server.process.serve import serve
        from roseinfer.server.routing import PrefixOwners

        counters = Counters.create(front_ends, replicas)
        shared = Shared(counters, PrefixOwners.create(counters.salt))
        settings = Settings(server, engine.model, int(time.time()))
        channels = [[process.sockets[index] for process in engines] for index in range(front_ends)]
        others = FrontEnds(settings, keys, channels[1:], shared)
        stack.callback(others.stop)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(engines, others, listener, shared, settings, keys))


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that has the address and does not listen yet. Raises ConfigError if it cannot be
    had."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise address_error(host, port, error) from None
    return sock


def address_error(host: str, port: int, error: OSError) -> ConfigError:
    """Return the error for an address on which the server cannot listen."""
    return ConfigError(
        f"cannot listen on {host} port {port}: {error.strerror}; choose another --host or --port"
    )


def _allow_many_connections() -> None:
    """Raise this process's limit of open files to what the system allows it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
        for sock in self.sockets:  # as many as the system allows
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHANNEL_BYTES)
        theirs = [end for _, end in pairs]
        arguments = [msgspec.json.encode(config).decode(), *(str(end.fileno()) for end in theirs)]
        name = "the engine process" if replicas == 1 else f"replica {replica} of the engine"
        inherited = environment(os.environ, replicas, replica)
        self.child = Child(name, module, arguments, theirs, environment=inherited)

    def stop(self) -> None:
        """Close the channels, wait until the process has ended, and kill it if it does not."""
        for sock in self.sockets:
            with contextlib.suppress(OSError):  # the process may be gone
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.child.wait_or_kill()
