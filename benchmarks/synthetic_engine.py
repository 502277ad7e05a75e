"""An engine process that computes nothing: every `STEP_MS` each of its requests gets a token.

For measuring everything but the engine: `python -m benchmarks.frontend`.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time

import msgspec
import numpy as np

from benchmarks.frontend import STEP_MS
from roseinfer.config import EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.engine.process import end_with, split
from roseinfer.ipc.engine_channel import EngineChannels
from roseinfer.ipc.messages import Discard, Load, Query, Ready, Submit
from roseinfer.modules import keep_what_is_made
from roseinfer.request.params import Finished, FinishReason
from roseinfer.scheduler.scheduler import StepResult


def run(config: EngineConfig, sockets: list[socket.socket], step_s: float) -> None:
    """Answer until the first socket's other side closes."""
    end_with(sockets[0])
    channels = EngineChannels(sockets)
    info = Engine(config).info
    for owner in range(len(channels)):
        channels.send(owner, Ready(info))
    keep_what_is_made()
    left: dict[int, int] = {}
    rng = np.random.default_rng(0)
    due = time.monotonic()
    while True:
        for owner, message in channels.receive(wait=not left):
            match message:
                case Submit(id, _, params, choices=choices):
                    left |= dict.fromkeys(range(id, id + choices), params.max_tokens)
                case Discard(id):
                    left.pop(id, None)
                case Query():
                    channels.send(owner, Load(len(left), 0, 0.0, 0, 0, 0))
        due = max(due + step_s, time.monotonic() - step_s)
        time.sleep(max(0.0, due - time.monotonic()))
        ids = np.fromiter(left, np.int64, len(left))
        left = {id: count - 1 for id, count in left.items()}
        ended = tuple(Finished(id, FinishReason.LENGTH, 0, 0, 0) for id, count in left.items() if not count)
        left = {id: count for id, count in left.items() if count}
        tokens = rng.integers(0, info.limits.vocab_size, len(ids))
        for owner, made in split(StepResult(ids, tokens, ended), len(channels)):
            channels.send(owner, made)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    ends = [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[2:]]
    try:
        run(msgspec.json.decode(sys.argv[1], type=EngineConfig), ends, float(os.environ[STEP_MS]) / 1e3)
    except EOFError:
        sys.exit(0)
