"""Watches the machine while a cell is measured: other processes, steal time, clocks, throttling, energy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf
from statistics import fmean, median
from time import monotonic
from typing import Any, NamedTuple, Self

import psutil

from harness.schema.machines import GpuLoad, MachineLoad, Power
from harness.telemetry.gpu import GpuReader, GpuReading, RaplReader, joules
from harness.telemetry.machine import busy_s, usable_cpu_times

#: A sample costs some milliseconds of one core, because every process of the machine is looked at.
PERIOD_S = 1.0
#: The kernel counts CPU time in hundredths of a second: a shorter interval says nothing about its busiest.
SHORTEST_S = 0.5


class Reading(NamedTuple):
    """The machine at one moment. CPU times are sums over `cpus`, in seconds since they started."""

    t: float
    cpus: int
    busy_s: float
    steal_s: float
    own_s: float
    mhz: float | None
    gpus: tuple[GpuReading, ...] = ()
    engine_s: float | None = None
    cpu_j: float | None = None


#: What of a reading only rises. GPUs have counters of their own.
COUNTERS = ("busy_s", "steal_s", "own_s", "engine_s", "cpu_j")


class CellMonitor:
    """Samples the machine inside a `with`, in a thread of its own.

    Args:
        engine: PIDs of the engine's processes now; empty where nothing is known of them.
        gpus: That the engine computes on; None: all that this process may use.
        ours: PIDs of other processes that, like this one, are not foreign with all below them.
    """

    def __init__(
        self,
        period_s: float = PERIOD_S,
        engine: Callable[[], Sequence[int]] = tuple,
        gpus: int | None = None,
        ours: Sequence[int] = (),
    ) -> None:
        self._gpus = gpus
        self._period_s = period_s
        self._stop = threading.Event()
        self._run_cpu, self._engine, self._rapl = CpuTime(), CpuTime(), RaplReader()
        self._roots, self._engine_pids = processes_of({os.getpid(), *ours}), engine
        self._thread = threading.Thread(target=self._watch, name="cell monitor", daemon=True)
        self.readings: list[Reading] = []

    def __enter__(self) -> Self:
        self._gpu = GpuReader(self._gpus)
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._take()
        self._gpu.close()

    def summary(self, begin: float = -inf, end: float = inf) -> MachineLoad:
        """Summarize the readings from `begin` to `end` by this machine's monotonic clock; valid after the
        `with`."""
        return summarize_readings(between(self.readings, begin, end))

    def _watch(self) -> None:
        while not self._stop.wait(self._period_s):
            self._take()

    def _take(self) -> None:
        times = usable_cpu_times()
        frequency = psutil.cpu_freq()
        engine = self._engine_pids()
        self.readings.append(
            Reading(
                t=monotonic(),
                cpus=len(times),
                busy_s=busy_s(times),
                steal_s=sum(time.steal for time in times),
                own_s=self._run_cpu.read(tree for root in self._roots for tree in processes_below(root)),
                mhz=frequency.current if frequency and frequency.current else None,
                gpus=self._gpu.read(),
                engine_s=self._engine.read(processes_of(engine)) if engine else None,
                cpu_j=self._rapl.read(),
            )
        )


def processes_of(pids: Iterable[int]) -> list[psutil.Process]:
    """Return the processes that still exist."""
    processes = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    return processes


def processes_below(root: psutil.Process) -> list[psutil.Process]:
    """A process and all below it; nothing of one that has ended."""
    with suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


class CpuTime:
    """CPU seconds of some processes, user and system, and of the children that they waited for.

    What a process spent stays counted when it has ended: by the parent that waited for it, or as last seen.
    """

    def __init__(self) -> None:
        self._ended_s = 0.0
        self._last: dict[tuple[int, float], tuple[float, int]] = {}  # seconds and parent

    def read(self, processes: Iterable[psutil.Process]) -> float:
        """The sum over these and over all that were ever given."""
        now: dict[tuple[int, float], tuple[float, int]] = {}
        for process in processes:
            with suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                spent = times.user + times.system + times.children_user + times.children_system
                now[process.pid, process.create_time()] = spent, process.ppid()
        alive = {pid for pid, _ in now}
        parents = {pid: parent for (pid, _), (_, parent) in self._last.items()}
        for key in self._last.keys() - now.keys():
            spent, parent = self._last[key]
            while parent in parents and parent not in alive:
                parent = parents[parent]
            if parent not in alive:
                self._ended_s += spent
        self._last = now
        return self._ended_s + sum(spent for spent, _ in now.values())


def between(readings: Sequence[Reading], begin: float, end: float) -> Sequence[Reading]:
    """Readings from `begin` to `end`, as far as there are some; all of them where no time is in between.

    At both ends counters are interpolated, and all else is what the next reading in between says.
    """
    begin, end = max(begin, readings[0].t), min(end, readings[-1].t)
    if begin >= end:
        return readings
    inside = [reading for reading in readings if begin < reading.t < end]
    return [_at(begin, readings, is_first=True), *inside, _at(end, readings, is_first=False)]


def _at(t: float, readings: Sequence[Reading], *, is_first: bool) -> Reading:
    before, after = next((a, b) for a, b in pairwise(readings) if a.t <= t <= b.t)
    nearest, share = after if is_first else before, (t - before.t) / (after.t - before.t)

    def value(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + share * (b - a)

    counters: dict[str, Any] = {name: value(getattr(before, name), getattr(after, name)) for name in COUNTERS}
    gpus = tuple(
        gpu._replace(energy_j=value(a.energy_j, b.energy_j))
        for gpu, a, b in zip(nearest.gpus, before.gpus, after.gpus, strict=True)
    )
    return nearest._replace(t=t, gpus=gpus, **counters)


def summarize_readings(readings: Sequence[Reading]) -> MachineLoad:
    """Readings of one cell, at least two, as one record. What is busy and not ours is foreign."""
    first, last = readings[0], readings[-1]
    seconds = last.t - first.t
    foreign = [
        max(0.0, (after.busy_s - before.busy_s) - (after.own_s - before.own_s)) / (after.t - before.t)
        for before, after in pairwise(readings)
        if after.t - before.t >= SHORTEST_S
    ]
    clocks = [reading.mhz for reading in readings if reading.mhz is not None]
    own_s = last.own_s - first.own_s
    return MachineLoad(
        seconds=seconds,
        samples=len(readings),
        cpus=last.cpus,
        own_cpu_s=own_s,
        engine_cpu_s=_rise(first.engine_s, last.engine_s),
        cpu_joules=_rise(first.cpu_j, last.cpu_j),
        power=_power(readings),
        foreign_cores_mean=max(0.0, last.busy_s - first.busy_s - own_s) / seconds if seconds else 0.0,
        foreign_cores_max=max(foreign, default=0.0),
        steal_share=(last.steal_s - first.steal_s) / (seconds * last.cpus) if seconds else 0.0,
        cpu_mhz_median=median(clocks) if clocks else None,
        cpu_mhz_min=min(clocks, default=None),
        gpus=[_gpu(samples) for samples in zip(*(reading.gpus for reading in readings), strict=True)],
    )


def _power(readings: Sequence[Reading]) -> list[Power]:
    """Power of all GPUs or, without one, of the processors, between every two readings."""
    t0, power = readings[0].t, []
    for before, after in pairwise(readings):
        energy = (joules(reading.gpus, reading.cpu_j) for reading in (before, after))
        rise, seconds = _rise(*energy), after.t - before.t
        if rise is not None and seconds >= SHORTEST_S:
            power.append(Power(begin=before.t - t0, end=after.t - t0, watts=rise / seconds))
    return power


def _rise(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else last - first


def _gpu(samples: Sequence[GpuReading]) -> GpuLoad:
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    heat = [sample.temperature_c for sample in samples if sample.temperature_c is not None]
    power = [sample.power_w for sample in samples if sample.power_w is not None]
    energy = [sample.energy_j for sample in samples if sample.energy_j is not None]
    reasons = sorted({reason for sample in samples for reason in sample.throttled})
    return GpuLoad(
        sm_clock_mhz_median=median(clocks) if clocks else None,
        sm_clock_mhz_min=min(clocks, default=None),
        temperature_c_max=max(heat, default=None),
        power_w_mean=fmean(power) if power else None,
        joules=energy[-1] - energy[0] if len(energy) == len(samples) else None,
        throttled={
            reason: sum(reason in sample.throttled for sample in samples) / len(samples) for reason in reasons
        },
    )
