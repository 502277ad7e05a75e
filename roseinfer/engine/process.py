"""The engine process: it does nothing but step, and ends when its channel closes."""

from __future__ import annotations

import gc
import logging
import signal
import socket

import numpy as np

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.ipc.channel import BlockingChannel
from roseinfer.ipc.messages import Discard, Failed, Ready, Submit, ToEngine, Tokens
from roseinfer.scheduler.scheduler import StepResult

log = logging.getLogger(__name__)


def run(config: EngineConfig, sock: socket.socket) -> None:
    """Serve requests from `sock` until its other side closes. The entry of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front end ends the engine by closing the channel
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    channel: BlockingChannel[ToEngine] = BlockingChannel(sock, ToEngine)  # type: ignore[arg-type]
    try:
        engine = Engine(config)
    except (ConfigError, MemoryError, RuntimeError) as error:
        channel.send(Failed(str(error)))
        return
    gc.collect()
    gc.freeze()
    try:
        channel.send(Ready(engine.info))
        _serve(engine, channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        log.exception("the engine stopped")
        channel.send(Failed(f"{type(error).__name__}: {error}"))


def _serve(engine: Engine, channel: BlockingChannel[ToEngine]) -> None:
    while True:
        for message in channel.receive(wait=not engine.has_work):
            match message:
                case Submit(id, prompt, params):
                    engine.add(id, np.frombuffer(prompt, dtype=np.int32), params)
                case Discard(id):
                    engine.discard(id)
        result = engine.step()
        if result is not None:
            channel.send(_message(result))


def _message(result: StepResult) -> Tokens:
    return Tokens(result.ids.tobytes(), result.tokens.tobytes(), result.finished)
