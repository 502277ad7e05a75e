"""The main process of a running server, where that is on this machine."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import psutil

from harness.engines.process.guard import family
from harness.errors import UsageError
from harness.loadgen.load_plan import Target


def main_process(pid: int, target: Target) -> psutil.Process:
    """Return the process of that PID, below which is every process that listens at `target`.

    Raises:
        UsageError: There is no such process, or its files are another user's. It or those below it do not
            listen there, or others do as well. Or this process is below it.
    """
    try:
        process = psutil.Process(pid)
        tree = {pid, *(child.pid for child in family(pid))}
        process.net_connections("tcp")
    except psutil.AccessDenied:
        raise UsageError(
            f"--server-pid {pid}: another user's process does not show where it listens",
            "run bench as that user",
        ) from None
    except psutil.NoSuchProcess:
        tree = set()
    listening = _listening(target.port) if target.proxy is None and _is_here(target.host) else set()
    if not listening or not listening <= tree or os.getpid() in tree:
        raise UsageError(
            f"--server-pid {pid} is not the main process of the server at {target.place}",
            "name the process that started those that listen there",
            new_run=True,
        )
    return process


def _is_here(host: str) -> bool:
    """Tell whether a host is an address of this machine."""
    ours = {address.address for each in psutil.net_if_addrs().values() for address in each}
    with suppress(OSError):
        return any(str(info[4][0]) in ours for info in socket.getaddrinfo(host, None))
    return False


def _listening(port: int) -> set[int]:
    """PIDs of the processes that listen on a port, as far as this process may see them."""
    pids = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            connections = process.net_connections("tcp")
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections):
                pids.add(process.pid)
    return pids
