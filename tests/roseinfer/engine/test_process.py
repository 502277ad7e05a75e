"""An engine's process, without a model."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from roseinfer.config import REPLICAS, EngineConfig
from roseinfer.engine.process import serve, share_cores
from roseinfer.ipc.engine_channel import EngineChannels
from roseinfer.ipc.framing import FrameReader, frame
from roseinfer.ipc.messages import Discard, Done, Failed, Record, Recorded, StartProfile, StopProfile

pytestmark = pytest.mark.integration


class Waits:
    """An engine whose one step is best called after two messages."""

    def __init__(self) -> None:
        self.has_work, self.seen = True, list[str]()
        self.came, self.stepped = threading.Event(), threading.Event()

    @property
    def launch_at(self) -> float:
        return time.monotonic() + 600 if len(self.seen) < 2 else 0.0

    def discard(self, request_id: int) -> None:
        self.seen.append(f"discard {request_id}")
        self.came.set()

    def step(self) -> None:
        if not self.stepped.is_set():
            self.seen.append("step")
        self.has_work = False
        self.stepped.set()

    def profile_ranks(self, path: str | None, *, with_stack: bool = False) -> None: ...


def served(engine: Any, front_end: Callable[[socket.socket], Any]) -> Any:
    """Serve a front end, which another thread is, until it ends. Returns what it returns."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    channels = EngineChannels([theirs])

    def run() -> Any:
        with ours:
            return front_end(ours)

    with ThreadPoolExecutor(1) as thread, theirs:
        result = thread.submit(run)
        with pytest.raises(EOFError):
            serve(engine, channels)
    return result.result()


def test_messages_that_come_before_the_launch_are_in_it() -> None:
    engine = Waits()

    def front_end(engine_socket: socket.socket) -> None:
        for number in (7, 8):
            engine_socket.sendall(frame(msgspec.msgpack.encode(Discard(number))))
            engine.came.wait()
        engine.stepped.wait()

    served(engine, front_end)
    assert engine.seen == ["discard 7", "discard 8", "step"]


def test_a_profile_of_an_idle_engine_ends(tmp_path: Path) -> None:
    """After its time, without a step and without a message."""
    engine = Waits()
    engine.has_work = False

    def front_end(engine_socket: socket.socket) -> list[Record | Done]:
        reader, came = FrameReader(), list[bytes]()
        for sent, answers in (
            (StartProfile(str(tmp_path), 5, False, seconds=0.05), 3),
            (Recorded(1, ()), 3),
            (StopProfile(), 4),  # it has been written
        ):
            engine_socket.sendall(frame(msgspec.msgpack.encode(sent)))
            while len(came) < answers:
                came += reader.feed(engine_socket.recv(1 << 16))
        return [msgspec.msgpack.decode(message, type=Record | Done) for message in came]

    assert served(engine, front_end) == [Record(), Done(), Record(end=True), Done()]
    assert [path.suffix for path in tmp_path.iterdir()] == [".gz"]


LOST = """
import socket, sys, threading
from roseinfer.config import EngineConfig, RankError
from roseinfer.engine import process

class Lost:
    def __init__(self, config, on_rank_end):
        threading.Thread(target=on_rank_end, args=["rank 1 has ended"]).start()
        raise RankError("rank 1 has ended")

process.Engine = Lost
sys.exit(process.run(EngineConfig(), [socket.socket(fileno=int(sys.argv[1]))]))
"""


def test_a_rank_that_is_lost_during_the_start_is_reported_once() -> None:
    """Two threads notice it. The parent gets one message to print, and this process prints nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", LOST, str(theirs.fileno())]
        child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        theirs.close()
        _, printed = child.communicate(timeout=60)
        messages = FrameReader().feed(ours.recv(1 << 16))
    assert [msgspec.msgpack.decode(message, type=Failed) for message in messages] == [
        Failed("rank 1 has ended")
    ]
    assert not printed and child.returncode == 2


CPU = EngineConfig(model="m", device="cpu")


@pytest.mark.parametrize(
    ("cores", "config", "environment", "threads"),
    [
        *((cores, CPU, {}, threads) for cores, threads in ((1, 1), (2, 1), (3, 2), (48, 47))),
        (8, replace(CPU, threads=5), {}, 5),
        (8, CPU, {"OMP_NUM_THREADS": "3"}, None),
        (8, EngineConfig(model="m", device="cuda"), {}, None),
        (8, CPU, {REPLICAS: "3"}, 2),
        (8, replace(CPU, threads=5), {REPLICAS: "3"}, 1),
        (8, replace(CPU, threads=1), {REPLICAS: "3"}, 1),
    ],
)
def test_a_server_leaves_a_core(monkeypatch, cores, config, environment, threads):
    """Replicas share the cores, or --threads. OMP_NUM_THREADS wins; on a GPU the choice is PyTorch's."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert share_cores(config, environment).threads == threads
