"""The machine, as `environment` in run.json."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
from pydantic import JsonValue

from harness.files import now
from harness.telemetry import gpu, revision

#: Instruction sets that decide how fast matrix products are on a CPU.
VECTOR_FLAGS = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"),
    *("asimd", "sve", "bf16"),
)
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Busy:
    """Cores that other programs take of those that this process may use, and the programs that take most."""

    cores: float
    of: int
    programs: Mapping[str, float]

    @property
    def share(self) -> float:
        """Share of all cores."""
        return self.cores / self.of


def busy_programs(seconds: float, most: int = 3) -> Busy:
    """Watch the machine for so long. Programs below a twentieth of a core have no name."""
    began, busy, before = monotonic(), busy_s(usable_cpu_times()), _spent()
    sleep(seconds)
    busy, after, lasted = busy_s(usable_cpu_times()) - busy, _spent(), monotonic() - began
    own_s = after[os.getpid()][1] - before[os.getpid()][1]
    cores: Counter[str] = Counter()
    for pid, (name, spent_s) in after.items():
        if pid != os.getpid():
            cores[name] += (spent_s - before.get(pid, (name, 0.0))[1]) / lasted  # type: ignore[assignment]
    named = {name: used for name, used in cores.most_common(most) if used > 0.05}
    return Busy(max(0.0, busy - own_s) / lasted, len(os.sched_getaffinity(0)), named)


def usable_cpu_times() -> list[Any]:
    """CPU times of each core that this process may use."""
    usable = os.sched_getaffinity(0)
    return [times for cpu, times in enumerate(psutil.cpu_times(percpu=True)) if cpu in usable]


def busy_s(cores: Sequence[Any]) -> float:
    """Seconds that cores have been busy, summed over them."""
    return float(sum(sum(times[:3]) + times.irq + times.softirq for times in cores))


def _spent() -> dict[int, tuple[str, float]]:
    """Name and CPU seconds of each process."""
    processes = psutil.process_iter(["name", "cpu_times"])
    return {
        process.pid: (process.info["name"], sum(process.info["cpu_times"][:2]))
        for process in processes
        if process.info["cpu_times"]
    }


def environment() -> dict[str, JsonValue]:
    """CPU, memory (bytes), kernel, OS, Python, GPUs, git state and the load average, now.

    A value that the system does not report is null.
    """
    return {
        "started": now(),
        "cpu": cpu(),
        "memory_total": psutil.virtual_memory().total,
        "memory_available": psutil.virtual_memory().available,
        "kernel": platform.release(),
        "os": _os_name(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "gpus": list(gpu.describe()),
        "git": revision.describe(),
    }


def hardware(device: str, environment: Mapping[str, Any]) -> list[object]:
    """The GPUs by name, or on a CPU its model and the cores used; and the processor of the GPUs' host."""
    cpu = environment.get("cpu") or {}
    host = [cpu.get("model"), cpu.get("usable_cores")]
    gpus = [gpu.get("name") for gpu in environment.get("gpus") or []]
    return [device, *host, *(gpus if device == "cuda" else [])]


def hardware_text(device: str, environment: Mapping[str, Any]) -> str:
    """The same in one line."""
    return ", ".join(str(part) for part in hardware(device, environment) if part is not None)


def cpu() -> dict[str, JsonValue]:
    """CPU model, physical and logical cores, logical cores that this process may use, vector instructions."""
    fields = _read_cpuinfo()
    return {
        "model": fields.get("model name") or platform.processor() or None,
        "architecture": platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "flags": list(cpu_flags()),
    }


def cpu_flags(cpuinfo: Path = CPUINFO) -> list[str]:
    """The VECTOR_FLAGS that the CPU has, as the kernel lists them in `cpuinfo`."""
    fields = _read_cpuinfo(cpuinfo)
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return [flag for flag in VECTOR_FLAGS if flag in flags]


def _read_cpuinfo(path: Path = CPUINFO) -> dict[str, str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()
