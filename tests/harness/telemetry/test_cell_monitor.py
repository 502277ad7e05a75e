"""The machine during a measurement: load of this run, load of other programs, and clocks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import namedtuple
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from harness.telemetry import gpu
from harness.telemetry.cell_monitor import (
    CellMonitor,
    CpuTime,
    Reading,
    between,
    processes_below,
    summarize_readings,
)
from harness.telemetry.gpu import GpuReader, GpuReading, RaplReader

pytestmark = pytest.mark.integration

#: As psutil has them on Linux, in this order.
CpuTimes = namedtuple("CpuTimes", ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"])
#: Takes 0.4 s of a processor, however long it waits for one.
BURN = "import time\nwhile time.process_time() < 0.4: pass"


def reading(t: float, busy_s: float, own_s: float, **other: object) -> Reading:
    fields = {"cpus": 2, "steal_s": 0.0, "mhz": 3000.0} | other
    return Reading(t=t, busy_s=busy_s, own_s=own_s, **fields)  # type: ignore[arg-type]


def test_what_is_busy_and_not_ours_is_foreign() -> None:
    """The busiest interval is none that lasts but a moment."""
    load = summarize_readings([reading(0, 5, 1), reading(1, 6, 2), reading(2, 8, 3), reading(4, 10, 5)])
    assert (load.own_cpu_s, load.foreign_cores_mean, load.foreign_cores_max) == (4, 1 / 4, 1)
    brief = summarize_readings([reading(0, 5, 1), reading(1, 6, 2), reading(1.01, 6.02, 2)])
    assert brief.foreign_cores_max == 0
    slowed = summarize_readings([reading(0, 0, 0), reading(2, 2, 2, steal_s=1.0, mhz=1500.0)])
    assert slowed.steal_share == pytest.approx(0.25)
    assert (slowed.cpu_mhz_min, slowed.cpu_mhz_median) == (1500, 2250)


def test_times_are_those_of_the_cpus_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three CPUs the second is not ours. Iowait and idle time are not busy."""
    ticks = count()

    def cpu_times(percpu: bool) -> list[CpuTimes]:
        assert percpu
        t = float(next(ticks))
        kinds = {"user": 1, "nice": 2, "system": 4, "idle": 900, "iowait": 900, "irq": 8, "softirq": 16}
        ours = {kind: t * s for kind, s in kinds.items()} | {"steal": t * 32}
        return [CpuTimes(**ours), CpuTimes(**dict.fromkeys(ours, 1e6 * t)), CpuTimes(**ours)]

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})
    with CellMonitor(period_s=60) as monitor:
        pass
    first, last = monitor.readings
    assert (last.cpus, last.busy_s - first.busy_s, last.steal_s - first.steal_s) == (2, 62, 64)


def test_why_a_gpu_lowered_its_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    values = {"PowerUsage": 300_000, "TotalEnergyConsumption": 5_000, "Temperature": 60}
    for name, value in values.items():
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda *_, value=value: value)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", unknown)
    rates = SimpleNamespace(gpu=63, memory=20)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda *_: rates)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", lambda reasons: reasons)
    set_by_somebody = pynvml.nvmlClocksEventReasonApplicationsClocksSetting
    idle = pynvml.nvmlClocksEventReasonGpuIdle | set_by_somebody
    held = sum(gpu.THROTTLE_REASONS.values())
    monkeypatch.setattr(gpu, "visible_devices", lambda: nullcontext([idle, held, held]))
    free, slowed = GpuReader(most=2).read()
    assert GpuReader(most=2).busy() == (0.63, 0.63)
    assert free == GpuReading(None, 60, 300, 5, ())
    assert set(slowed.throttled) == {
        *("power cap", "hardware slowdown", "thermal (software)", "thermal (hardware)", "power brake")
    }


def test_a_gpu_that_was_held_down_and_one_whose_energy_is_unknown_once() -> None:
    first = GpuReading(1980, 40, 300, 1000)
    last = GpuReading(1200, 85, 500, 1900, ("thermal (hardware)",))
    readings = [reading(0, 0, 0, gpus=(first,)), reading(2, 0, 0, gpus=(last,))]
    [gpu] = summarize_readings(readings).gpus
    assert (gpu.joules, gpu.power_w_mean, gpu.temperature_c_max) == (900, 400, 85)
    assert (gpu.sm_clock_mhz_min, gpu.throttled) == (1200, {"thermal (hardware)": 0.5})
    unknown = [readings[0], reading(2, 0, 0, gpus=(last._replace(energy_j=None),))]
    assert summarize_readings(unknown).gpus[0].joules is None


def test_the_engines_part_is_known_where_its_processes_are_and_a_gpu_counts_before_the_processors() -> None:
    known = [reading(0, 0, 0, engine_s=3.0, cpu_j=10.0), reading(1, 2, 2, engine_s=4.5, cpu_j=30.0)]
    assert (summarize_readings(known).engine_cpu_s, summarize_readings(known).joules) == (1.5, 20.0)
    unknown = summarize_readings([reading(0, 0, 0), reading(1, 2, 2)])
    assert (unknown.engine_cpu_s, unknown.joules) == (None, None)
    gpus = [GpuReading(None, None, None, energy) for energy in (5.0, 8.0)]
    readings = [reading(t, 0, 0, gpus=(gpu,), cpu_j=100.0 * t) for t, gpu in enumerate(gpus)]
    assert summarize_readings(readings).joules == 3.0


def test_power_between_readings_on_the_clock_of_the_cell() -> None:
    readings = [
        reading(t, 0, 0, cpu_j=joules) for t, joules in ((10, 0.0), (11, 40.0), (13, 60.0), (13.1, 99.0))
    ]
    power = summarize_readings(readings).power
    assert [(part.begin, part.end, part.watts) for part in power] == [(0.0, 1.0, 40.0), (1.0, 3.0, 10.0)]
    assert summarize_readings([reading(0, 0, 0), reading(1, 0, 0, cpu_j=3.0)]).power == []


def test_only_what_is_between_two_moments_counts() -> None:
    """A GPU takes 100 W while it is loaded, from 1 s to 4 s, and 10 W before and after."""
    taken = (0.0, 10.0, 110.0, 210.0, 310.0, 320.0)
    readings = [
        reading(t, 2 * t, t, gpus=(GpuReading(1000.0 + t, None, None, joules),), engine_s=3.0 * t)
        for t, joules in enumerate(taken)
    ]
    load = summarize_readings(between(readings, 1.5, 3.5))
    assert (load.seconds, load.joules, load.engine_cpu_s, load.foreign_cores_mean) == (2.0, 200.0, 6.0, 1.0)
    assert [(part.begin, part.end, part.watts) for part in load.power] == [
        (0.0, 0.5, 100.0), (0.5, 1.5, 100.0), (1.5, 2.0, 100.0)
    ]  # fmt: skip
    assert load.gpus[0].sm_clock_mhz_min == 1002.0
    assert summarize_readings(between(readings, -9.0, 9.0)).joules == 320.0
    assert summarize_readings(between(readings, 2.25, 2.75)).joules == 50.0, "no reading is in between"
    assert between(readings, 7.0, 8.0) is readings


def test_power_of_gpus_is_that_of_all_that_are_counted() -> None:
    pairs = [[GpuReading(None, None, 9.0, energy) for energy in both] for both in ((1.0, 2.0), (4.0, 9.0))]
    readings = [reading(t, 0, 0, gpus=tuple(gpus), cpu_j=1.0) for t, gpus in enumerate(pairs)]
    assert [part.watts for part in summarize_readings(readings).power] == [10.0]
    blind = [GpuReading(None, None, 9.0, None), pairs[1][1]]
    assert summarize_readings([readings[0], reading(2, 0, 0, gpus=tuple(blind))]).power == []


def test_the_engine_is_watched_by_its_pids() -> None:
    stays = f"input()\n{BURN}\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", stays], stdin=-1, stdout=-1, text=True) as engine:
        assert engine.stdin is not None and engine.stdout is not None
        with CellMonitor(engine=lambda: [engine.pid]) as monitor:
            engine.stdin.write("\n")
            engine.stdin.flush()
            engine.stdout.readline()
        engine.communicate("\n")
    spent = monitor.summary().engine_cpu_s
    assert spent is not None and 0.2 < spent < monitor.summary().own_cpu_s + 0.1


def test_counters_of_energy_start_again_at_zero(tmp_path: Path) -> None:
    zones = [tmp_path / name for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0")]
    for zone in zones:
        zone.mkdir()
        (zone / "energy_uj").write_text("7000000\n")
        (zone / "max_energy_range_uj").write_text("9000000\n")
    rapl = RaplReader(tmp_path)
    assert rapl.read() == 0
    (zones[0] / "energy_uj").write_text("8500000\n")
    (zones[1] / "energy_uj").write_text("1000000\n")  # 2 J to the end, 1 J after it
    assert rapl.read() == 4.5
    (zones[0] / "energy_uj").unlink()
    assert rapl.read() is None
    assert RaplReader(tmp_path / "nowhere").read() is None


def test_children_are_ours_and_processes_of_others_are_not() -> None:
    foreign = subprocess.Popen(["setsid", "--fork", sys.executable, "-c", f"input()\n{BURN}"], stdin=-1)
    foreign.wait()
    with CellMonitor(period_s=0.1) as monitor:
        foreign.communicate(b"\n")
        deadline = time.monotonic() + 60
        while foreign_s(monitor) < 0.2 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert foreign_s(monitor) >= 0.2
    with CellMonitor(period_s=0.1) as monitor:
        subprocess.run([sys.executable, "-c", BURN], check=True)
    load = monitor.summary()
    assert load.own_cpu_s >= 0.3
    assert load.samples == len(monitor.readings) >= 2


def test_what_a_process_spends_after_the_last_sample_is_ours() -> None:
    """Clients end with their load, between two samples."""
    with CellMonitor(period_s=60) as monitor:
        subprocess.run([sys.executable, "-c", BURN], check=True)
    assert 0.35 <= monitor.summary().own_cpu_s < 0.8


def test_a_process_counts_once_whoever_waited_for_it() -> None:
    """A parent has the times of the children that it waited for; others stay counted as they were seen."""
    burn = f"subprocess.run([sys.executable, '-c', {BURN!r}])"
    nested = f"import subprocess, sys\n{burn}\nprint(flush=True)\ninput()"
    spent = CpuTime()
    with subprocess.Popen([sys.executable, "-c", nested], stdin=-1, stdout=-1, text=True) as parent:
        assert parent.stdout is not None
        tree = processes_below(psutil.Process(parent.pid))
        before = spent.read(tree)
        parent.stdout.readline()
        seen = spent.read(tree)
        assert 0.35 <= seen - before < 0.8
        parent.communicate("\n")
    assert spent.read(tree) == spent.read([]) == seen


def foreign_s(monitor: CellMonitor) -> float:
    load = summarize_readings(monitor.readings)
    return load.foreign_cores_mean * load.seconds
