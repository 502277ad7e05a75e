"""The processes of an engine's other ranks, as rank 0 sees them: their states, their ends, and how far they
are with loading."""

from __future__ import annotations

import logging
import select
import socket
import subprocess
import time
from collections.abc import Sequence

import psutil

from roseinfer.engine.ranks.messages import receive
from roseinfer.modules import how_it_ended

log = logging.getLogger(__name__)

Process = subprocess.Popen[bytes]


def await_all(
    sockets: Sequence[socket.socket], processes: Sequence[Process], what: str, notice_s: float, limit_s: float
) -> str | None:
    """Wait for every rank's RankDone; `what` says what a rank has done then. The log says after `notice_s`
    who is awaited. Returns why a rank cannot go on, or that it has not answered within `limit_s`; or None."""
    begun = time.monotonic()
    for rank, (sock, process) in enumerate(zip(sockets, processes, strict=True), start=1):
        late = f"rank {rank} of the engine has not {what}"
        if not _readable(sock, begun + notice_s):
            waits = f"rank 0 has waited {notice_s:g} s, and waits {limit_s:g} s at most"
            log.warning("%s; %s (%s)", late, waits, states(processes))
        if not _readable(sock, begun + limit_s):
            return f"{late} within {limit_s:g} s after rank 0 ({states(processes)})"
        if (error := _error(rank, sock, process)) is not None:
            return error
    return None


def _readable(sock: socket.socket, until: float) -> bool:
    """Return whether there is something to read, or the other end is closed, before the time `until`."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(max(0.0, until - time.monotonic()) * 1e3))


def _error(rank: int, sock: socket.socket, process: Process) -> str | None:
    """Return the reason why a rank that has answered or ended cannot go on, or None."""
    try:
        message = receive(sock)
    except ConnectionError:  # it has ended, and had not read all that it was sent
        message = None
    return end(rank, process) if message is None else message.error


def end(rank: int, process: Process) -> str:
    """Wait until a rank has ended. Returns how it did."""
    return f"rank {rank} of the engine has ended ({how_it_ended(process.wait())})"


def states(processes: Sequence[Process]) -> str:
    """The state of each rank's process, from rank 1 on."""
    return ", ".join(f"rank {rank} is {_state(process)}" for rank, process in enumerate(processes, start=1))


def is_stopped(process: Process) -> bool:
    """Return whether a process stands still, until somebody lets it go on."""
    return _state(process) == psutil.STATUS_STOPPED


def _state(process: Process) -> str:
    try:
        return str(psutil.Process(process.pid).status())
    except psutil.NoSuchProcess:
        return "gone"
