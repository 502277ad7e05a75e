"""Over how many GPUs an engine computes, or over how many processes on a CPU, and which GPUs these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from harness.errors import UsageError
from harness.telemetry import gpu

T = TypeVar("T")


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
    if device == "cuda" and parallel.devices > (there := gpu.count()):
        raise UsageError(
            f"{label} would need {parallel.devices} GPUs ({parallel}), and {there} can be used here",
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


def shares(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """As many parts of equal length as are wanted, in order; what does not divide is left out."""
    each = max(1, len(items) // parts)
    return [items[part * each : (part + 1) * each] for part in range(parts)]
