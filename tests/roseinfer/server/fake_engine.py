"""An engine process without a model, for tests of the processes around it: it starts without PyTorch.

Every 2 ms each of its requests gets a token. As a program without arguments it is `roseinfer serve` with it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from roseinfer.info import EngineInfo
from roseinfer.ipc.engine_channel import EngineChannels
from roseinfer.ipc.messages import OWNER_SHIFT, CheckBlocks, Discard, Done, Load, Query, Ready, Submit, Tokens
from roseinfer.modules import leave_signals_to_parent
from roseinfer.request.params import Finished, FinishReason

#: The environment variable with the file that has its EngineInfo, in JSON.
INFO = "FAKE_ENGINE_INFO"
STEP_S = 0.002


def run(info: EngineInfo, sockets: list[socket.socket]) -> None:
    """Answer until the first socket's other side closes."""
    channels = EngineChannels(sockets)
    for owner in range(len(sockets)):
        channels.send(owner, Ready(info))
    remaining: dict[int, int] = {}  # tokens of each request that are still to come
    while True:
        for owner, message in channels.receive(wait=not remaining):
            match message:
                case Submit(id, _, params, choices=choices):
                    remaining |= dict.fromkeys(range(id, id + choices), params.max_tokens)
                case Discard(id):
                    remaining.pop(id, None)
                case Query():
                    channels.send(owner, Load(len(remaining), 0, 0.0, 0, 0, 0))
                case CheckBlocks():
                    channels.send(owner, Done("requests are in flight" if remaining else None))
        time.sleep(STEP_S)
        for owner in range(len(sockets)):
            ids = [id for id in remaining if id >> OWNER_SHIFT == owner]
            ends = tuple(Finished(id, FinishReason.LENGTH, 0, 0, 0) for id in ids if remaining[id] == 1)
            if ids:
                tokens = np.full(len(ids), 5, np.int64).tobytes()
                channels.send(owner, Tokens(np.array(ids, np.int64).tobytes(), tokens, ends))
        remaining = {id: count - 1 for id, count in remaining.items() if count > 1}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        from roseinfer import cli

        cli.launch = partial(cli.launch, module="tests.roseinfer.server.fake_engine")  # type: ignore[attr-defined]
        cli.main()
    leave_signals_to_parent()
    ends = [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[2:]]
    try:
        run(msgspec.json.decode(Path(os.environ[INFO]).read_bytes(), type=EngineInfo), ends)
    except EOFError:
        sys.exit(0)
