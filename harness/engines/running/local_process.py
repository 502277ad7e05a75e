"""The main process of a running server, where that is on this machine."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import psutil

from harness.engines.process.engine_server import listeners
from harness.engines.process.guard import family
from harness.errors import UsageError
from harness.loadgen.load_plan import Target


def main_process(pid: int, target: Target) -> psutil.Process:
    """Return the process of that PID, below which is every process that listens at `target`.

    Raises:
        UsageError: There is no such process, or its files are another user's. It or those below it do not
            listen there, or others do as well. Or this process is below it.
    """
    if listeners([pid], target.port) is None:
        raise UsageError(
            f"--server-pid {pid}: another user's process does not show where it listens",
            "run bench as that user",
        )
    tree, listening = {pid, *(process.pid for process in family(pid))}, set[int]()
    if target.proxy is None and _is_here(target.host):
        listening = {each for each in psutil.pids() if listeners([each], target.port)}
    if not listening or not listening <= tree or os.getpid() in tree:
        raise UsageError(
            f"--server-pid {pid} is not the main process of the server at {target.place}",
            "name the process that started those that listen there",
            new_run=True,
        )
    return psutil.Process(pid)


def _is_here(host: str) -> bool:
    """Tell whether a host is an address of this machine."""
    ours = {address.address for each in psutil.net_if_addrs().values() for address in each}
    with suppress(OSError):
        return any(str(info[4][0]) in ours for info in socket.getaddrinfo(host, None))
    return False
