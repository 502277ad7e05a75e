"""Launch of a server: its socket, its engine processes and its front ends, which load at the same time."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from contextlib import ExitStack

import msgspec

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.model_folder import model_folder
from roseinfer.server.access import api_keys, check_exposure
from roseinfer.server.config import ServerConfig
from roseinfer.server.process.engine_process import EngineProcess


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
        others = FrontEnds(msgspec.json.encode(settings), keys, channels[1:], shared)
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
