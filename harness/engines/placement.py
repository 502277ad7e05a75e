"""CPUs and GPUs of a run: which ones engine and load generator use, and what `auto` means on this machine.

With four physical cores or more, the client gets a quarter of them (at least one, at most eight), with all
their threads, and the engine gets the rest: neither takes time from the other or shares a core with it. With
fewer cores nothing is pinned, because a core for the client alone would cost the engine more than sharing
does. Every engine then runs at a lower priority than the client (guard.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal

from harness.errors import UsageError
from harness.schema.settings import CommonSettings, Device, Dtype
from harness.telemetry import gpu, machine

TOPOLOGY = Path("/sys/devices/system/cpu")
MIN_CORES = 4
CLIENT_SHARE = 4
MAX_CLIENT_CORES = 8


@dataclass(frozen=True)
class CpuSplit:
    """Logical CPUs of client and engine; None if not pinned."""

    client: tuple[int, ...] | None
    engine: tuple[int, ...] | None


def physical_cores(topology: Path = TOPOLOGY) -> list[tuple[int, ...]]:
    """The logical CPUs that this process may use, grouped by physical core, in CPU order."""
    groups: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        group = siblings.read_text().strip() if siblings.exists() else str(cpu)
        groups.setdefault(group, []).append(cpu)
    return [tuple(group) for group in groups.values()]


def engine_cores(cpus: Collection[int] | None) -> list[int]:
    """One logical CPU of each physical core that an engine on `cpus` may use."""
    usable = [[cpu for cpu in core if cpus is None or cpu in cpus] for core in physical_cores()]
    return [core[0] for core in usable if core]


def thread_cpus(cpus: Collection[int] | None, threads: int) -> list[int]:
    """Logical CPUs, of those that an engine may use, for so many threads: one of each core, then their
    siblings."""
    cores = engine_cores(cpus)
    siblings = sorted({*(cpus or os.sched_getaffinity(0))} - {*cores})
    return sorted([*cores, *siblings][:threads])


def compute_threads(cpus: Collection[int] | None) -> int:
    """Compute threads of an engine on `cpus`: one on each physical core except one, which is for its front
    end and, where nothing is pinned, the client."""
    return max(1, len(engine_cores(cpus)) - 1)


def split(cores: list[tuple[int, ...]]) -> CpuSplit:
    """Split a machine's physical cores by the rule above."""
    if len(cores) < MIN_CORES:
        return CpuSplit(None, None)
    client = min(len(cores) // CLIENT_SHARE, MAX_CLIENT_CORES)
    flat = [tuple(sorted(cpu for core in part for cpu in core)) for part in (cores[:client], cores[client:])]
    return CpuSplit(*flat)


@dataclass(frozen=True)
class Parallel:
    """`tensor` GPUs share each layer of the model; `data` such groups share the requests."""

    tensor: int = 1
    data: int = 1

    @property
    def devices(self) -> int:
        """GPUs, or on a CPU processes, in all."""
        return self.tensor * self.data

    def __str__(self) -> str:
        return f"--tensor-parallel-size {self.tensor} --data-parallel-size {self.data}"


ONE = Parallel()


def check_gpus(label: str, parallel: Parallel, device: Literal["cuda", "cpu"]) -> None:
    """Raises UsageError where an engine is to compute on more GPUs than this process may use."""
    if device == "cuda" and parallel.devices > (visible_gpus := gpu.count()):
        raise UsageError(
            f"{label} would need {parallel.devices} GPUs ({parallel}), and {visible_gpus} can be used here",
            "give smaller sizes, or let CUDA_VISIBLE_DEVICES name more GPUs",
        )


def only_gpus(parallel: Parallel, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that let an engine see the first `parallel.devices` of this process's GPUs and no others:
    left alone, some engines spread over all, and others take memory on each."""
    names = gpu.names(environment)
    if len(names) <= parallel.devices:
        return {}
    ordered = "CUDA_VISIBLE_DEVICES" in environment
    order = {} if ordered else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # that of NVML
    return {**order, "CUDA_VISIBLE_DEVICES": ",".join(names[: parallel.devices])}


def shares(items: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Split `items` into `parts` of equal length, in order; a remainder is left out.

    Each of more parts than items has one, some the same.
    """
    if len(items) < parts:
        return [[items[part % len(items)]] for part in range(parts)]
    each = len(items) // parts
    return [items[part * each : (part + 1) * each] for part in range(parts)]


#: What every engine on a GPU gets where nothing else is asked for.
RUNNING_REQUESTS, MEMORY_UTILIZATION = 256, 0.85
#: CPU flags of bfloat16 products on x86-64 (AVX-512, AMX) and on 64-bit Arm.
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True)
class Placement:
    """Device, dtype and threads with which the engines of a run compute."""

    device: Literal["cuda", "cpu"]
    dtype: Literal["fp16", "bf16", "fp32"]
    cpu_threads: int | Literal["auto"]
    cpus: CpuSplit


def resolve_placement(settings: CommonSettings, alone: bool = False) -> Placement:
    """Choose device, dtype and CPUs by the settings and this machine. Raises UsageError where they do not
    fit.

    Args:
        alone: Clients run on other machines, and the engine has all cores.
    """
    device = resolve_device(settings.device)
    cpus = CpuSplit(None, None) if alone else split(physical_cores())
    processes = parallel_of(settings).devices
    threads = resolve_cpu_threads(settings.cpu_threads, device, cpus.engine, processes)
    return Placement(device, resolve_dtype(settings.dtype, device), threads, cpus)


def parallel_of(settings: CommonSettings) -> Parallel:
    """Over how many GPUs, or on a CPU processes, the engines of a run compute."""
    return Parallel(settings.tensor_parallel_size, settings.data_parallel_size)


def resolve_capacity(
    settings: CommonSettings, device: Literal["cuda", "cpu"], in_flight: float = 0
) -> dict[str, object]:
    """The settings of how many requests run at a time and how much memory they have, equal for all engines on
    a GPU. `in_flight`: the most that the load can have, if that is known. Raises UsageError for a share of a
    GPU's memory where none is used."""
    requests, share = settings.max_running_requests, settings.gpu_memory_utilization
    if device == "cpu":
        if share not in (None, "default"):
            raise UsageError(
                f"--gpu-memory-utilization {share:g}: the engines compute on the CPU", "leave it out"
            )
        return {}
    return {
        "max_running_requests": max(RUNNING_REQUESTS, ceil(in_flight)) if requests is None else requests,
        "gpu_memory_utilization": MEMORY_UTILIZATION if share is None else share,
    }


def resolve_device(device: Device) -> Literal["cuda", "cpu"]:
    """auto is the GPU if there is one. Raises UsageError for cuda without a GPU."""
    if device == "cpu":
        return "cpu"
    if gpu.available():
        return "cuda"
    if device == "cuda":
        raise UsageError("--device cuda: there is no usable NVIDIA GPU", "use --device cpu")
    return "cpu"


def resolve_dtype(dtype: Dtype, device: Literal["cuda", "cpu"]) -> Literal["fp16", "bf16", "fp32"]:
    """auto is fp16 on a GPU, bf16 on a CPU with bf16 products, else fp32, which is faster on such a CPU."""
    if dtype != "auto":
        return dtype
    if device == "cuda":
        return "fp16"
    return "bf16" if BF16_FLAGS & set(machine.cpu_flags()) else "fp32"


def resolve_cpu_threads(
    threads: int | Literal["auto"],
    device: Literal["cuda", "cpu"],
    cpus: Collection[int] | None,
    processes: int = 1,
) -> int | Literal["auto"]:
    """Compute threads of every engine on `cpus` (None: all CPUs), in all its `processes` together; on a GPU
    that stays each engine's choice.

    Raises:
        UsageError: a number is asked for on a GPU, or one above the CPUs that there are, or one that leaves a
            process without a thread.
    """
    if device == "cuda":
        if threads != "auto":
            raise UsageError(
                f"--cpu-threads {threads}: the engines compute on the GPU",
                "leave it out, or add --device cpu",
            )
        return threads
    most = len(os.sched_getaffinity(0) if cpus is None else cpus)
    if processes > most:
        raise UsageError(
            f"--tensor-parallel-size × --data-parallel-size are {processes} processes, and engines may use "
            f"{most} CPUs here",
            "give smaller sizes",
        )
    if threads == "auto":
        return max(compute_threads(cpus), processes)
    if threads > most:
        raise UsageError(
            f"--cpu-threads {threads}: engines may use {most} CPUs here", "give a smaller number"
        )
    if threads < processes:
        raise UsageError(
            f"--cpu-threads {threads} is less than one for each of {processes} processes that compute",
            f"give --cpu-threads {processes} or more",
        )
    return threads
