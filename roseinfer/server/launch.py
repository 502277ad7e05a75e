"""Starts the engine process and the HTTP server, so that both load at the same time."""

from __future__ import annotations

from roseinfer.config import EngineConfig
from roseinfer.folder import model_folder
from roseinfer.server.config import ServerConfig
from roseinfer.server.engine_process import EngineProcess
from roseinfer.server.listen import bind


def launch(engine: EngineConfig, server: ServerConfig) -> int:
    """Serve until told to stop. Returns the process's exit code. Raises ConfigError before serving."""
    model_folder(engine.model)  # no process is started for a model that is not there
    with bind(server.host, server.port) as listener, EngineProcess(engine) as process:
        from roseinfer.server.serve import serve  # imported while the engine loads

        return serve(process, listener, server, engine.model)
