"""Starts the engine process and the front ends, so that all load at the same time."""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack

import msgspec

from roseinfer.config import EngineConfig
from roseinfer.model_folder import model_folder
from roseinfer.server.access import api_keys, check_exposure
from roseinfer.server.config import ServerConfig
from roseinfer.server.process.engine_process import EngineProcess
from roseinfer.server.process.listen import bind


def launch(engine: EngineConfig, server: ServerConfig, module: str = "roseinfer.engine.process") -> int:
    """Serve until a signal to stop. Returns the process's exit code. Raises ConfigError before serving."""
    model_folder(engine.model)  # no process is started for a model that is not there
    front_ends = server.num_front_ends
    keys = api_keys(server.api_key_file)
    _allow_many_connections()
    with bind(server.host, server.port) as listener:
        check_exposure(listener, keys, server.insecure)
        replicas = server.data_parallel_size
        with ExitStack() as stack:
            engines = [
                stack.enter_context(EngineProcess(engine, front_ends, module, replicas, replica))
                for replica in range(replicas)
            ]
            # Imported while the engine loads.
            from roseinfer.server.metrics.counters import Counters
            from roseinfer.server.prefix_owners import PrefixOwners
            from roseinfer.server.process.front_end import Settings, Shared
            from roseinfer.server.process.front_ends import FrontEnds
            from roseinfer.server.process.serve import serve

            counters = Counters.create(front_ends, replicas)
            shared = Shared(counters, PrefixOwners.create(counters.salt))
            settings = Settings(server, engine.model, int(time.time()))
            channels = [[process.sockets[index] for process in engines] for index in range(front_ends)]
            with FrontEnds(msgspec.json.encode(settings), keys, channels[1:], shared) as others:
                return serve(engines, others, listener, shared, settings, keys)


def _allow_many_connections() -> None:
    """Raise this process's limit of open files to what the system allows it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
