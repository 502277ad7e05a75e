"""How many cores a program keeps busy while another one computes, read once a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

INTERVAL_S = 1.0
#: Cores that the rest of the machine uses: above it the server computes.
COMPUTES = 0.75


def processor_share(pid: int, goes_on: Callable[[], bool], limit_s: float) -> float:
    """Mean cores of a process and all its descendants, over the seconds in which the rest computed.

    Raises:
        TimeoutError: It goes on for longer than `limit_s`.
    """
    own, seconds, before, ends = 0.0, 0.0, _used(pid), time.monotonic() + limit_s
    while goes_on():
        if time.monotonic() > ends:
            raise TimeoutError(f"process {pid} did not end within {limit_s:g} s")
        time.sleep(INTERVAL_S)
        now = _used(pid)
        passed, machine = now[0] - before[0], now[1] - before[1]
        spent = sum(max(0.0, used - before[2].get(child, 0.0)) for child, used in now[2].items())
        if machine - spent > COMPUTES * passed:
            own, seconds = own + spent, seconds + passed
        before = now
    return own / seconds if seconds else 0.0


def _used(pid: int) -> tuple[float, float, dict[int, float]]:
    """The time, and seconds of CPU so far: of the machine, of each process of the program."""
    machine = psutil.cpu_times()
    used: dict[int, float] = {}
    try:
        program = psutil.Process(pid)
        for process in (program, *program.children(recursive=True)):
            times = process.cpu_times()
            used[process.pid] = times.user + times.system
    except psutil.NoSuchProcess:
        pass
    return time.monotonic(), machine.user + machine.system, used
