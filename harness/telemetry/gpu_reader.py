"""Clocks, temperature, power, energy and throttling of the GPUs, read again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import pynvml

from harness.telemetry.gpu import visible_devices

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
        return tuple(_reported(_busy, handle) for handle in self._handles)


def joules(gpus: Sequence[GpuReading], cpu_j: float | None) -> float | None:
    """What the counters of all GPUs say or, where there is none, those of the processors, `cpu_j`; None where
    one is not there."""
    counters = [gpu.energy_j for gpu in gpus] or [cpu_j]
    known = [each for each in counters if each is not None]
    return sum(known) if len(known) == len(counters) else None


def _read(handle: Any) -> GpuReading:
    power_mw = _reported(pynvml.nvmlDeviceGetPowerUsage, handle)
    energy_mj = _reported(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    reasons = int(_reported(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0)
    return GpuReading(
        sm_clock_mhz=_reported(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        temperature_c=_reported(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power_w=None if power_mw is None else power_mw / 1e3,
        energy_j=None if energy_mj is None else energy_mj / 1e3,
        throttled=tuple(name for name, bit in THROTTLE_REASONS.items() if reasons & bit),
    )


def _busy(handle: Any) -> float:
    return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100


def _reported(read: Callable[..., Any], *arguments: Any) -> float | None:
    try:
        return float(read(*arguments))
    except pynvml.NVMLError:
        return None
