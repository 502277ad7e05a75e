"""A rank other than 0: it computes its shard of every step that rank 0 announces. It ends with rank 0, which
kills it if it does not end by itself.

Started as `python -m roseinfer.engine.ranks.follow CONFIG RANK FD`: an EngineConfig in JSON, and the file
descriptor of its end of a socket to rank 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.choose import choose_runner
from roseinfer.engine.eager import EagerRunner
from roseinfer.engine.load import LoadedModel, load_model
from roseinfer.engine.ranks.messages import PROFILE, Profile, RankDone, Start, StepLimits, line_of
from roseinfer.engine.ranks.step_memory import Step, StepMemory
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.ranks import is_missing
from roseinfer.modules import keep_what_is_made, leave_signals_to_parent
from roseinfer.tensors import no_memory

#: From prctl(2).
_PR_SET_PDEATHSIG = 1
_TRACE = ".trace.json.gz"


class RankProfile:
    """Off until started."""

    def __init__(self) -> None:
        self._running: profile | None = None
        self._path = Path()

    def start(self, path: Path, with_stack: bool) -> None:
        """Start profiling; the trace (gzip) goes to `path`."""
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._path, self._running = path, profile(activities=activities, with_stack=with_stack)
        self._running.start()

    def stop(self) -> str | None:
        """End the profile and write the trace. Returns an error message, or None."""
        if self._running is None:
            return None
        running, self._running = self._running, None
        running.stop()
        partial = self._path.with_name(f".{self._path.name}")
        try:
            running.export_chrome_trace(str(partial))
            partial.replace(self._path)
        except (OSError, RuntimeError) as error:
            return f"the profile of a rank cannot be written: {error}"
        return None


def run(config: EngineConfig, rank: int, sock: socket.socket) -> int:
    """Follow rank 0 until it closes `sock`. Returns the exit code."""
    try:
        part = load_model(config, rank)
        model = part.model
        _say(sock, RankDone())
        message, descriptors, _, _ = socket.recv_fds(sock, 1 << 16, 1)
        if not message:
            return 0
        start = msgspec.json.decode(message, type=Start)
        pool = KVPool(part.kv_shape, start.num_blocks, config.block_size, part.device)
        keep_what_is_made()
        _say(sock, RankDone())
    except ConfigError as error:
        _say(sock, RankDone(f"rank {rank}: {error}"))
        return 2
    except (MemoryError, RuntimeError) as error:
        if (why := no_memory(error)) is None:
            raise
        _say(sock, RankDone(f"rank {rank}: {why}"))
        return 2
    steps = StepMemory(descriptors[0], start.sizes, config.block_size)
    os.close(descriptors[0])
    try:
        model.ranks.room(start.sizes.tokens, start.sizes.logits)
        model.ranks.connect(Path(start.file), config.rank_timeout_s)
        compute = _computer(config, part, pool, start.limits)
        profile = RankProfile()
        while kind := sock.recv(1):
            if kind == PROFILE:
                _obey(msgspec.json.decode(line_of(sock), type=Profile), rank, profile, sock)
            else:
                compute(steps.read())
    except (MemoryError, RuntimeError) as error:
        if (why := no_memory(error)) is not None:
            _say(sock, RankDone(why))
            return 2
        if not isinstance(error, RuntimeError) or not is_missing(error):
            raise
        while sock.recv(1):  # until rank 0 has ended: it takes a rank that ends before it for the cause
            pass
    return 0


def _computer(
    config: EngineConfig, part: LoadedModel, pool: KVPool, limits: StepLimits
) -> Callable[[Step], None]:
    """A function that computes this rank's shard of a step."""
    runner = choose_runner(config, part.model, pool, part.dtype, limits).runner
    if isinstance(runner, EagerRunner):
        return lambda step: runner.follow(step.batch, step.prompt_rows)
    from roseinfer.engine.cuda import CudaRunner

    assert isinstance(runner, CudaRunner)
    return lambda step: runner.follow(step.batch)


def _obey(order: Profile, rank: int, profile: RankProfile, sock: socket.socket) -> None:
    if order.path is None:
        _say(sock, RankDone(profile.stop()))
    else:
        path = Path(order.path)
        name = path.name.removesuffix(_TRACE)
        profile.start(path.with_name(f"{name}.rank{rank}{_TRACE}"), order.with_stack)


def _say(sock: socket.socket, message: RankDone) -> None:
    with contextlib.suppress(OSError):  # rank 0 may have ended
        sock.sendall(msgspec.json.encode(message) + b"\n")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    leave_signals_to_parent()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # even if it hangs
    settings, rank, fd = sys.argv[1:]
    with socket.socket(fileno=int(fd)) as end:
        try:
            code = run(msgspec.json.decode(settings, type=EngineConfig), int(rank), end)
        except Exception:
            traceback.print_exc()
            code = 1
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            os._exit(code)  # CUDA's shutdown waits for kernels, which may wait for a rank that has ended
        sys.exit(code)
