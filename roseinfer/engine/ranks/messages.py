"""The messages between rank 0 and the other tensor-parallel ranks of an engine."""

from __future__ import annotations

import socket

import msgspec

from roseinfer.engine.graphs import MixedSteps
from roseinfer.engine.ranks.step_memory import StepSizes

#: Bytes sent to a rank: for each step, and before a Profile, which follows as a line of JSON.
STEP, PROFILE = b"s", b"p"


class StepLimits(msgspec.Struct, frozen=True):
    """Limits of an engine's steps, as `choose_runner` takes them."""

    max_model_len: int
    max_batch_size: int
    prefill_max_tokens: int
    mixed: MixedSteps


class Start(msgspec.Struct, frozen=True):
    """Sent to a rank once all have loaded: blocks of the KV cache, limits and sizes of steps, and the file
    through which the ranks find each other. The file descriptor of the memory for steps comes with it."""

    num_blocks: int
    limits: StepLimits
    sizes: StepSizes
    file: str


class RankDone(msgspec.Struct, frozen=True):
    """A rank has loaded its shard, has allocated its cache, or has written its profile; or why it cannot."""

    error: str | None = None


class Profile(msgspec.Struct, frozen=True):
    """Profile the steps that follow, each rank into a file beside rank 0's `path`. Without a path, end the
    profile and write it; a RankDone answers."""

    path: str | None = None
    with_stack: bool = False


def receive(sock: socket.socket) -> RankDone | None:
    """The next message of a rank; None where it has ended."""
    answer = line_of(sock)
    return msgspec.json.decode(answer, type=RankDone) if answer.endswith(b"\n") else None


def line_of(sock: socket.socket) -> bytes:
    """Read one line, and no byte more: other messages may follow it."""
    line = b""
    while not line.endswith(b"\n") and (more := sock.recv(1)):
        line += more
    return line
