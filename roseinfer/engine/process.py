"""The engine process: it runs the engine's steps, and ends when its first channel closes.

Started as `python -m roseinfer.engine.process CONFIG FD…`: an EngineConfig in JSON, and the file descriptors
of its ends of the channels, one for each front end.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NoReturn

import msgspec
import numpy as np
import torch

from roseinfer.config import REPLICAS, ConfigError, EngineConfig, RankError
from roseinfer.engine.core import Engine
from roseinfer.engine.profiler import StepProfiler, nvtx_ranges
from roseinfer.engine.resolve import resolve_device
from roseinfer.ipc.engine_channel import EngineChannels, FrontEndStuckError
from roseinfer.ipc.messages import (
    OWNER_SHIFT,
    CheckBlocks,
    Discard,
    Done,
    Failed,
    Load,
    Order,
    PackedLogprobs,
    Query,
    Ready,
    Record,
    Recorded,
    StartProfile,
    StopProfile,
    Submit,
    Tokens,
)
from roseinfer.modules import end_with, keep_what_is_made, leave_signals_to_parent
from roseinfer.request.logprobs import StepLogprobs
from roseinfer.request.params import RequestError
from roseinfer.scheduler.scheduler import StepResult
from roseinfer.tensors import no_memory
from roseinfer.tracing.ranges import named_range

log = logging.getLogger(__name__)

OMP_THREADS = "OMP_NUM_THREADS"
#: Held, until the process ends, by the thread that says why.
_EXIT_LOCK = threading.Lock()


def share_cores(config: EngineConfig, environment: Mapping[str, str]) -> EngineConfig:
    """On a CPU, use one compute thread fewer than PyTorch's default, which is one for each physical core,
    divided among the server's engine processes.

    The spare core is for the front ends. With a compute thread on every core, each layer of each step waits
    for whatever else runs on one of them (docs/notes/cpu-engine.md). `--threads`, for all these processes
    together, and OMP_NUM_THREADS, for each of them, take precedence.
    """
    replicas = int(environment.get(REPLICAS, "1"))
    if resolve_device(config.device).type != "cpu":
        return config
    threads = config.threads
    if threads is None:
        if OMP_THREADS in environment:
            return config
        threads = torch.get_num_threads() - 1
    return replace(config, threads=max(1, threads // replicas))


def run(config: EngineConfig, sockets: Sequence[socket.socket]) -> int:
    """Serve requests from `sockets` until the other side of the first closes. Returns the exit code."""
    end_with(sockets[0])
    channels = EngineChannels(sockets)
    ready = False

    def end_now(why: str) -> NoReturn:
        """Say why this process cannot go on, once, and exit, whatever its threads are doing."""
        _EXIT_LOCK.acquire()
        if ready:
            log.error("%s", why)
            os._exit(1)
        _send_all(channels, Failed(why))
        os._exit(2)

    try:
        engine = Engine(share_cores(config, os.environ), on_rank_end=end_now)
    except ConfigError as error:
        _send_all(channels, Failed(str(error)))
        return 2
    except RankError as error:
        end_now(str(error))
    except (MemoryError, RuntimeError) as error:
        if (why := no_memory(error)) is None:
            raise
        _send_all(channels, Failed(why))
        return 2
    keep_what_is_made()
    channels.spin_s = engine.info.spin_s
    # Free memory returns to the system: glibc's heap fragments further with every new batch shape.
    channels.on_idle = partial(ctypes.CDLL(None).malloc_trim, 0)
    with _EXIT_LOCK:
        _send_all(channels, Ready(engine.info))
        ready = True
    try:
        with nvtx_ranges():
            serve(engine, channels)
    except EOFError:
        return 0
    except FrontEndStuckError as error:
        log.error("%s", error)
        return 1
    except RankError as error:
        end_now(str(error))
    except (MemoryError, RuntimeError) as error:
        if (why := no_memory(error)) is None:
            raise
        end_now(why)


def split(result: StepResult, owners: int) -> Iterator[tuple[int, Tokens]]:
    """The step's tokens for each of the `owners` front ends that has any in it."""
    if owners == 1:
        yield 0, _whole(result)
        return
    owner = result.ids >> OWNER_SHIFT
    if len(owner) == 1:
        yield int(owner[0]), _whole(result)
        return
    order = np.argsort(owner, kind="stable")
    ids, tokens = result.ids[order], result.tokens[order]
    cuts = np.searchsorted(owner[order], np.arange(owners + 1)).tolist()
    for index in range(owners):
        start, end = cuts[index], cuts[index + 1]
        if start < end:
            finished, begun = (
                tuple(end for end in ends if end.id >> OWNER_SHIFT == index)
                for ends in (result.finished, result.begun)
            )
            yield index, Tokens(ids[start:end].tobytes(), tokens[start:end].tobytes(), finished, begun)


def _whole(result: StepResult) -> Tokens:
    return Tokens(result.ids.tobytes(), result.tokens.tobytes(), result.finished, result.begun)


def split_logprobs(step: StepLogprobs) -> Iterator[tuple[int, PackedLogprobs]]:
    """The logprobs for each front end whose requests ask for them."""
    owner = step.ids >> OWNER_SHIFT
    for index in np.unique(owner).tolist():
        yield index, PackedLogprobs.of(step.where(owner == index))


def serve(engine: Engine, channels: EngineChannels) -> NoReturn:
    """Answer the messages of `channels` and run the engine's steps. Raises EOFError when the first channel
    closes."""
    profiler = StepProfiler(len(channels), lambda message: _send_all(channels, message), engine.profile_ranks)
    orders: deque[tuple[int, Order]] = deque()
    while True:
        idle = not engine.has_work
        with nullcontext() if idle else named_range("roseinfer.ipc.recv"):
            incoming = channels.receive(wait=idle, until=profiler.ends if idle else engine.launch_at)
        for owner, message in incoming:
            match message:
                case Submit(id, prompt, params, submitted, client, choices, salt):
                    ids = np.frombuffer(prompt, dtype=np.int32)
                    engine.submit(id, ids, params, submitted, client, choices, salt)
                case Discard(id):
                    engine.discard(id)
                case Query(flush):
                    if flush:
                        engine.flush_cache()
                    channels.send(owner, _load(engine))
                case Recorded():
                    profiler.add_ranges(message)
                case _:
                    orders.append((owner, message))
        while orders and (answer := _execute(orders[0][1], engine, profiler)) is not None:
            channels.send(orders.popleft()[0], answer)
        profiler.end_in_time()
        if time.monotonic() < engine.launch_at:
            continue
        with named_range("roseinfer.mp.step"):
            result = engine.step()
        if result is not None:
            with named_range("roseinfer.ipc.send"):
                for step in (result.prompt_logprobs, result.logprobs):
                    for owner, logprobs in split_logprobs(step) if step is not None else ():
                        channels.send(owner, logprobs)
                for owner, tokens in split(result, len(channels)):
                    channels.send(owner, tokens)
            profiler.step()


def _execute(order: Order, engine: Engine, profiler: StepProfiler) -> Done | None:
    """Carry out an order. Returns the answer; None while a profile is being written: then it has to wait."""
    if isinstance(order, StopProfile):
        profiler.stop()
    if profiler.writing:
        return None
    try:
        match order:
            case StartProfile(folder, steps, with_stack, seconds):
                profiler.start(folder, steps, with_stack, seconds)
            case StopProfile() if profiler.failure is not None:
                raise RequestError(profiler.failure)
            case CheckBlocks():
                engine.check_idle()
    except (RequestError, AssertionError) as error:
        return Done(str(error))
    return Done()


def _send_all(channels: EngineChannels, message: Ready | Failed | Record) -> None:
    for owner in range(len(channels)):
        channels.send(owner, message)


def _load(engine: Engine) -> Load:
    return Load(
        engine.num_running, engine.num_waiting, engine.kv_usage, engine.preemptions,
        engine.prompt_tokens, engine.cached_tokens, engine.expert_skew, engine.drafts,
        None if engine.step_costs is None else engine.step_costs.error,
    )  # fmt: skip


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    leave_signals_to_parent()
    settings, *descriptors = sys.argv[1:]
    ends = [socket.socket(fileno=int(descriptor)) for descriptor in descriptors]
    sys.exit(run(msgspec.json.decode(settings, type=EngineConfig), ends))
