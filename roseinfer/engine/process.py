"""The engine process: it does nothing but step, and ends when its channel closes.

Started as `python -m roseinfer.engine.process FD CONFIG`: the descriptor of its end of the channel, and an
EngineConfig in JSON.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import socket
import sys
import threading

import msgspec
import numpy as np
import torch
from torch.profiler import record_function

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.engine.profiler import StepProfiler
from roseinfer.ipc.channel import BlockingChannel
from roseinfer.ipc.messages import (
    Discard,
    Failed,
    Load,
    Profiled,
    Query,
    Ready,
    StartProfile,
    StopProfile,
    Submit,
    ToEngine,
    Tokens,
)
from roseinfer.params import RequestError
from roseinfer.scheduler.scheduler import StepResult

log = logging.getLogger(__name__)


def run(config: EngineConfig, sock: socket.socket) -> None:
    """Serve requests from `sock` until its other side closes."""
    threading.Thread(target=_end_with, args=(sock,), daemon=True).start()
    channel: BlockingChannel[ToEngine] = BlockingChannel(sock, ToEngine)  # type: ignore[arg-type]
    try:
        engine = Engine(config)
    except ConfigError as error:
        channel.send(Failed(str(error)))
        return
    except (MemoryError, torch.OutOfMemoryError) as error:
        channel.send(Failed(f"not enough memory: {error}"))
        return
    gc.collect()
    gc.freeze()
    try:
        channel.send(Ready(engine.info))
        _serve(engine, channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _end_with(sock: socket.socket) -> None:
    """End this process, whatever it is doing, when the other side of `sock` is gone."""
    poll = select.poll()
    poll.register(sock, 0)  # a hang-up is always reported
    poll.poll()
    os._exit(0)


def _serve(engine: Engine, channel: BlockingChannel[ToEngine]) -> None:
    profiler = StepProfiler()
    while True:
        for message in channel.receive(wait=not engine.has_work):
            match message:
                case Submit(id, prompt, params):
                    engine.add(id, np.frombuffer(prompt, dtype=np.int32), params)
                case Discard(id):
                    engine.discard(id)
                case Query():
                    channel.send(_load(engine))
                case StartProfile() | StopProfile():
                    channel.send(_profile(profiler, message))
        result = engine.step()
        if result is not None:
            with record_function("roseinfer.ipc.send"):
                channel.send(_message(result))
            profiler.step()


def _profile(profiler: StepProfiler, message: StartProfile | StopProfile) -> Profiled:
    try:
        if isinstance(message, StartProfile):
            profiler.start(message.folder, message.steps, message.with_stack)
        else:
            profiler.stop()
    except RequestError as error:
        return Profiled(str(error))
    return Profiled()


def _message(result: StepResult) -> Tokens:
    return Tokens(result.ids.tobytes(), result.tokens.tobytes(), result.finished)


def _load(engine: Engine) -> Load:
    return Load(engine.num_running, engine.num_waiting, engine.kv_usage, engine.preemptions)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    run(msgspec.json.decode(sys.argv[2], type=EngineConfig), socket.socket(fileno=int(sys.argv[1])))
