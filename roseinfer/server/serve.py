"""The HTTP server's life around the engine process."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket

import uvicorn
import uvloop

from roseinfer.server.app import Server
from roseinfer.server.config import ServerConfig
from roseinfer.server.engine_client import EngineClient
from roseinfer.server.engine_process import EngineProcess
from roseinfer.server.listen import listen
from roseinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)


def serve(process: EngineProcess, listener: socket.socket, config: ServerConfig, model: str) -> int:
    """Answer requests on `listener` until told to stop, or until the engine ends.

    Returns the process's exit code: 0 when told to stop, 1 when the engine has died.
    Raises ConfigError before serving.
    """
    tokenizer = load_tokenizer(model)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(process, listener, config, tokenizer, model))


async def _serve(
    process: EngineProcess,
    listener: socket.socket,
    config: ServerConfig,
    tokenizer: Tokenizer | None,
    model: str,
) -> int:
    def stop() -> None:
        starting.cancel()
        server.should_exit = True

    def on_death() -> None:
        log.error("the engine process has ended (%s); stopping the server", process.how_it_ended())
        stop()

    engine = EngineClient(process, on_death)
    application = Server(
        engine,
        tokenizer,
        model=config.served_model_name or model,
        api_key=config.api_key,
        max_inflight=config.max_inflight_requests,
    )
    server = uvicorn.Server(
        uvicorn.Config(
            application.app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=60,
        )
    )
    starting = asyncio.ensure_future(engine.start())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        await starting
    except asyncio.CancelledError:
        return 0
    log.info("engine: %s", engine.info.describe())
    log.info("listening on %s", listen(listener))
    gc.collect()
    gc.freeze()
    await server.serve(sockets=[listener])
    died = not engine.alive
    engine.stop()
    return 1 if died else 0
