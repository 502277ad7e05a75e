"""What `auto` means on this machine, for all engines."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from typing import Literal

from harness.engines.cores import CpuSplit, compute_threads, physical_cores, split
from harness.engines.parallel import Parallel
from harness.errors import UsageError
from harness.schema.settings import CommonSettings, Device, Dtype
from harness.telemetry import gpu, machine

#: What every engine on a GPU gets where nothing else is asked for.
RUNNING_REQUESTS, MEMORY_UTILIZATION = 256, 0.85
#: CPU flags of bfloat16 products on x86-64 (AVX-512, AMX) and on 64-bit Arm.
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True)
class Placement:
    """What the engines of a run compute on, and with how many threads."""

    device: Literal["cuda", "cpu"]
    dtype: Literal["fp16", "bf16", "fp32"]
    cpu_threads: int | Literal["auto"]
    cpus: CpuSplit


def resolve_placement(settings: CommonSettings, alone: bool = False) -> Placement:
    """By the settings and this machine. Raises UsageError where they do not fit.

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
    asked, share = settings.max_running_requests, settings.gpu_memory_utilization
    if device == "cpu":
        if share not in (None, "default"):
            raise UsageError(
                f"--gpu-memory-utilization {share:g}: the engines compute on the CPU", "leave it out"
            )
        return {}
    return {
        "max_running_requests": max(RUNNING_REQUESTS, ceil(in_flight)) if asked is None else asked,
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
    asked: int | Literal["auto"],
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
        if asked != "auto":
            raise UsageError(
                f"--cpu-threads {asked}: the engines compute on the GPU", "leave it out, or add --device cpu"
            )
        return asked
    most = len(os.sched_getaffinity(0) if cpus is None else cpus)
    if processes > most:
        raise UsageError(
            f"--tensor-parallel-size × --data-parallel-size are {processes} processes, and engines may use "
            f"{most} CPUs here",
            "give smaller sizes",
        )
    if asked == "auto":
        return max(compute_threads(cpus), processes)
    if asked > most:
        raise UsageError(f"--cpu-threads {asked}: engines may use {most} CPUs here", "give a smaller number")
    if asked < processes:
        raise UsageError(
            f"--cpu-threads {asked} is less than one for each of {processes} processes that compute",
            f"give --cpu-threads {processes} or more",
        )
    return asked
