"""Starts engine and HTTP server, and ends both."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import dataclass

import uvicorn

from roseinfer.config import EngineConfig, setting
from roseinfer.server.app import Server
from roseinfer.server.engine_client import EngineClient
from roseinfer.tokenizer.tokenizer import load_tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerConfig:
    """Where the server listens, and whom it lets in; options are made from these fields."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one and prints it")
    served_model_name: str | None = setting(None, "the name clients use; the model's if not given")
    api_key: str | None = setting(None, "what clients must send as a bearer token")
    max_inflight_requests: int | None = setting(None, "answer 429 above this many requests")


def serve(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serve until told to stop. Returns the process's exit code. Raises ConfigError before serving."""
    return asyncio.Runner(loop_factory=_loop).run(_serve(engine_config, server_config))


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()  # type: ignore[no-any-return]


async def _serve(engine_config: EngineConfig, config: ServerConfig) -> int:
    tokenizer = load_tokenizer(engine_config.model)
    died = False

    def on_death() -> None:
        nonlocal died
        died = server.should_exit = True
        log.error("the engine process has ended; stopping the server")

    engine = EngineClient(engine_config, on_death)
    await engine.start()
    try:
        log.info("engine: %s", engine.info.describe())
        application = Server(
            engine,
            tokenizer,
            model=config.served_model_name or engine_config.model,
            api_key=config.api_key,
            max_inflight=config.max_inflight_requests,
        )
        settings = uvicorn.Config(
            application.app,
            host=config.host,
            port=config.port,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=60,
            backlog=4096,
        )
        server = uvicorn.Server(settings)
        gc.collect()
        gc.freeze()
        await server.serve()
    finally:
        engine.stop()
    return 1 if died or not server.started else 0
