"""The machine during a measurement: what is ours, what is foreign, what the clocks did."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from harness.telemetry.cell_monitor import CellMonitor, Reading, summarize_readings
from harness.telemetry.gpu_reader import GpuReading

pytestmark = pytest.mark.integration

#: Takes a second of a processor, however long it waits for one.
BURN = "import time\nwhile time.process_time() < 1: pass"


def reading(t: float, busy_s: float, own_s: float, **other: object) -> Reading:
    fields = {"cpus": 2, "steal_s": 0.0, "mhz": 3000.0} | other
    return Reading(t=t, busy_s=busy_s, own_s=own_s, **fields)  # type: ignore[arg-type]


def test_what_is_busy_and_not_ours_is_foreign() -> None:
    load = summarize_readings([reading(0, 5, 1), reading(1, 6, 2), reading(2, 8, 3), reading(4, 10, 5)])
    assert load.own_cpu_s == 4
    assert load.foreign_cores_mean == pytest.approx(1 / 4)
    assert load.foreign_cores_max == pytest.approx(1)


def test_a_moment_is_not_the_busiest_interval() -> None:
    load = summarize_readings([reading(0, 5, 1), reading(1, 6, 2), reading(1.01, 6.02, 2)])
    assert load.foreign_cores_max == 0


def test_steal_time_and_clocks() -> None:
    load = summarize_readings([reading(0, 0, 0), reading(2, 2, 2, steal_s=1.0, mhz=1500.0)])
    assert load.steal_share == pytest.approx(0.25)
    assert (load.cpu_mhz_min, load.cpu_mhz_median) == (1500, 2250)


def test_a_gpu_that_was_held_down() -> None:
    first = GpuReading(1980, 40, 300, 1000)
    last = GpuReading(1200, 85, 500, 1900, ("thermal (hardware)",))
    readings = [reading(0, 0, 0, gpus=(first,)), reading(2, 0, 0, gpus=(last,))]
    [gpu] = summarize_readings(readings).gpus
    assert (gpu.joules, gpu.power_w_mean, gpu.temperature_c_max) == (900, 400, 85)
    assert (gpu.sm_clock_mhz_min, gpu.throttled) == (1200, {"thermal (hardware)": 0.5})


def test_an_energy_counter_that_is_missing_once_is_unknown() -> None:
    readings = [reading(t, 0, 0, gpus=(GpuReading(None, None, None, e),)) for t, e in ((0, 1.0), (1, None))]
    assert summarize_readings(readings).gpus[0].joules is None


def test_children_are_ours_and_processes_of_others_are_not() -> None:
    foreign = subprocess.Popen(["setsid", "--fork", sys.executable, "-c", BURN])
    foreign.wait()
    with CellMonitor(period_s=0.1) as monitor:
        deadline = time.monotonic() + 60
        while foreign_s(monitor) < 0.3 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert foreign_s(monitor) >= 0.3
    with CellMonitor(period_s=0.1) as monitor:
        subprocess.run([sys.executable, "-c", BURN], check=True)
    load = monitor.summary()
    assert load.own_cpu_s >= 0.3
    assert load.samples == len(monitor.readings) >= 2


def foreign_s(monitor: CellMonitor) -> float:
    load = summarize_readings(monitor.readings)
    return load.foreign_cores_mean * load.seconds
