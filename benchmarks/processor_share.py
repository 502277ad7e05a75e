"""Cores that a program keeps busy while another one computes, read once a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from harness.telemetry.cell_monitor import CpuTime, processes_below, processes_of

INTERVAL_S = 1.0
#: Cores that the rest of the machine uses: above it the server computes.
COMPUTES = 0.75


def processor_share(pid: int, goes_on: Callable[[], bool], limit_s: float) -> float:
    """Mean cores of a process and all its descendants, over the seconds in which the rest computed.

    Raises:
        TimeoutError: It goes on for longer than `limit_s`.
    """
    program = CpuTime()
    used_s, seconds, before, ends = 0.0, 0.0, _used(program, pid), time.monotonic() + limit_s
    while goes_on():
        if time.monotonic() > ends:
            raise TimeoutError(f"process {pid} did not end within {limit_s:g} s")
        time.sleep(INTERVAL_S)
        now = _used(program, pid)
        passed, machine, spent = (after - was for after, was in zip(now, before, strict=True))
        if machine - spent > COMPUTES * passed:
            used_s, seconds = used_s + spent, seconds + passed
        before = now
    return used_s / seconds if seconds else 0.0


def _used(program: CpuTime, pid: int) -> tuple[float, float, float]:
    """The time, and seconds of CPU so far: of the machine, and of the program."""
    machine = psutil.cpu_times()
    tree = [process for root in processes_of([pid]) for process in processes_below(root)]
    return time.monotonic(), machine.user + machine.system, program.read(tree)
