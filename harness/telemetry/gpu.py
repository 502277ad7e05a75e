"""The GPUs that this process may use, as NVML reports them. Empty if there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import takewhile
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import pynvml
from pydantic import JsonValue

from harness.errors import BenchError, CleanupError
from harness.schema.machines import sum_known

#: Share of a GPU's memory that may still differ after an engine has ended.
TOLERANCE = 0.01
#: For each GPU: bytes used, bytes in total, and the PIDs that use some.
Memory = list[tuple[int, int, list[int]]]


@contextmanager
def visible_devices() -> Iterator[list[Any]]:
    """The devices of CUDA_VISIBLE_DEVICES (without it all), valid while NVML is open."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    try:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            yield _all_devices()
        else:
            handles = (_by_name(name.strip()) for name in visible.split(","))
            yield list(takewhile(lambda handle: handle is not None, handles))
    finally:
        pynvml.nvmlShutdown()


def _all_devices() -> list[Any]:
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]


def _by_name(name: str) -> Any:
    """A device by index, by UUID or by an unambiguous beginning of a UUID; None if there is none, where CUDA
    ends its list.
    """
    if name.isdecimal():
        return dict(enumerate(_all_devices())).get(int(name))
    if name.startswith("GPU-"):
        named = [device for device in _all_devices() if pynvml.nvmlDeviceGetUUID(device).startswith(name)]
        return named[0] if len(named) == 1 else None
    return _reported(pynvml.nvmlDeviceGetHandleByUUID, name)


def available() -> bool:
    """Return whether this process may use a GPU."""
    return count() > 0


def count() -> int:
    """Count the GPUs that this process may use."""
    with visible_devices() as handles:
        return len(handles)


def names(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES of `environment` names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return [str(index) for index in range(count())] if visible is None else visible.split(",")[: count()]


def describe() -> list[dict[str, JsonValue]]:
    """Name, memory (bytes), power limit (W), clocks (MHz), temperature, driver and CUDA of each GPU.

    A value that a device does not report is null.
    """
    with visible_devices() as handles:
        return [_device(handle) for handle in handles]


def _device(handle: Any) -> dict[str, JsonValue]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    cuda, mig = pynvml.nvmlSystemGetCudaDriverVersion(), _reported(pynvml.nvmlDeviceGetMigMode, handle)
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "memory_total": memory.total,
        "memory_used": memory.used,
        "power_limit_w": _thousandth(_reported(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
        "power_w": _thousandth(_reported(pynvml.nvmlDeviceGetPowerUsage, handle)),
        "temperature_c": _reported(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "sm_clock_mhz": _reported(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "sm_clock_max_mhz": _reported(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": _reported(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        "mig": mig and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    }


def _memory() -> Memory:
    with visible_devices() as handles:
        uses = []
        for handle in handles:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            holders = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            uses.append((memory.used, memory.total, holders))
        return uses


@contextmanager
def memory_restored(label: str, patience_s: float = 20.0) -> Iterator[None]:
    """Run an engine inside. After it, every GPU must have as much free memory as before, within 1 % of its
    size.

    Raises:
        CleanupError: it has less after `patience_s`, the driver's time to free memory; the message names the
            PIDs that use memory, after the error of the engine, if it had one.
    """
    before = _memory()
    try:
        yield
    except BenchError as error:
        _wait(label, before, patience_s, error)
        raise
    _wait(label, before, patience_s)


def _wait(label: str, before: Memory, patience_s: float, fault: BenchError | None = None) -> None:
    """Wait until memory is as `before`. Raises CleanupError if that takes longer than `patience_s`."""
    deadline = monotonic() + patience_s
    while still_used := _still_used(before, _memory()):
        if monotonic() > deadline:
            what, hint = f"after {label} had ended, {'; '.join(still_used)}", "end these processes"
            if fault is not None:
                what, hint = f"{fault.message}; {what}", "; ".join(filter(None, (fault.hint, hint)))
            raise CleanupError(what, hint) from fault
        sleep(0.2)


def _still_used(before: Memory, now: Memory) -> list[str]:
    return [
        f"GPU {index} still uses {(used - was) / 2**20:.0f} MiB (PIDs {', '.join(map(str, pids)) or '?'})"
        for index, ((was, total, _), (used, _, pids)) in enumerate(zip(before, now, strict=True))
        if used - was > TOLERANCE * total
    ]


#: Why a GPU's clocks are below what was asked for, by NVML's bits. Being idle, and clocks that somebody set,
#: are no reasons.
THROTTLE_REASONS = {
    "power cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hardware slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "thermal (software)": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "thermal (hardware)": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "power brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}


class GpuReading(NamedTuple):
    """One GPU at one moment; `energy_j` counts from when its driver was loaded. None: not reported."""

    sm_clock_mhz: float | None
    temperature_c: float | None
    power_w: float | None
    energy_j: float | None
    throttled: tuple[str, ...] = ()


class GpuReader:
    """Holds NVML open; reads the GPUs that this process may use, in the order of CUDA: the first `most`, or
    all."""

    def __init__(self, most: int | None = None) -> None:
        self._stack = ExitStack()
        self._handles = self._stack.enter_context(visible_devices())[:most]

    def close(self) -> None:
        """Close NVML."""
        self._stack.close()

    def read(self) -> tuple[GpuReading, ...]:
        """The GPUs now; empty where there is none."""
        return tuple(map(_read, self._handles))

    def busy(self) -> tuple[float | None, ...]:
        """Share of the last second or less in which each computed; None: not reported."""
        rates = [_reported(pynvml.nvmlDeviceGetUtilizationRates, handle) for handle in self._handles]
        return tuple(rate and rate.gpu / 100 for rate in rates)


def joules(gpus: Sequence[GpuReading], cpu_j: float | None) -> float | None:
    """Sum the energy counters of all GPUs or, without one, take that of the processors, `cpu_j`; None if one
    is missing."""
    return sum_known([gpu.energy_j for gpu in gpus] or [cpu_j])


def _read(handle: Any) -> GpuReading:
    reasons = _reported(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
    return GpuReading(
        sm_clock_mhz=_reported(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        temperature_c=_reported(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power_w=_thousandth(_reported(pynvml.nvmlDeviceGetPowerUsage, handle)),
        energy_j=_thousandth(_reported(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)),
        throttled=tuple(name for name, bit in THROTTLE_REASONS.items() if reasons & bit),
    )


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1e3


def _reported(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what NVML reads; None where the device does not report it."""
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None


#: Long enough for counters that move every tenth of a second.
IDLE_S = 2.0


ZONES = Path("/sys/class/powercap")


class RaplReader:
    """Sums the counters of all packages; one that starts again at zero is noticed at the next reading."""

    def __init__(self, zones: Path = ZONES) -> None:
        self._packages = sorted(zone for zone in zones.glob("intel-rapl:*") if zone.name.count(":") == 1)
        self._last: dict[Path, int] = {}
        self._total_uj = 0

    def read(self) -> float | None:
        """Joules since the first reading; None where there is no counter, or one cannot be read."""
        if not self._packages:
            return None
        try:
            for zone in self._packages:
                now = int((zone / "energy_uj").read_text())
                rise = now - self._last.get(zone, now)
                if rise < 0:
                    rise += int((zone / "max_energy_range_uj").read_text())
                self._total_uj += rise
                self._last[zone] = now
        except (OSError, ValueError):
            return None
        return self._total_uj / 1e6


class Idle(NamedTuple):
    """Before an engine is started.

    Attributes:
        watts: By the same energy counters as a cell's; None: not known.
        gpus_busy: Share of the last second or less in which each GPU computed; None: not reported.
    """

    watts: float | None = None
    gpus_busy: tuple[float | None, ...] = ()


def idle(seconds: float = IDLE_S, zones: Path = ZONES, gpus: int | None = None) -> Idle:
    """Measure the first `gpus` GPUs, or all; without one, the watts of the processors. Returns at once if
    there is neither a GPU nor an energy counter."""
    with closing(GpuReader(gpus)) as reader:
        rapl = RaplReader(zones)
        first, begin = joules(reader.read(), rapl.read()), monotonic()
        if first is None and not reader.busy():
            return Idle()
        sleep(seconds)
        last, end = joules(reader.read(), rapl.read()), monotonic()
        busy = reader.busy()
    return Idle(None if first is None or last is None else (last - first) / (end - begin), busy)
