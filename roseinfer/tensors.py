"""Copies of arrays to a device and of tensors to the host, and the message of an out-of-memory error."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """`array`, of any shape, on `device`: on a CPU, in the same memory; to a GPU through pinned memory, so
    that the host does not wait for what is queued there."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class Uploads:
    """Copies of large tensors to a GPU, through pinned memory that all of PyTorch's CPU threads fill. `part`
    bytes are copied at a time, while the next ones are filled in."""

    def __init__(self, device: torch.device, part: int = 64 << 20) -> None:
        self._part = part
        stages = (torch.empty(part, dtype=torch.uint8, pin_memory=True) for _ in range(2))
        self._device = device
        self._turns = cycle([(stage, torch.cuda.Event()) for stage in stages])  # type: ignore[no-untyped-call]

    def __call__(self, tensor: Tensor) -> Tensor:
        """`tensor`, contiguous and of any shape, on the GPU."""
        uploaded = torch.empty_like(tensor, device=self._device)
        source, target = (each.view(-1).view(torch.uint8) for each in (tensor, uploaded))
        for start in range(0, len(source), self._part):
            part = source[start : start + self._part]
            stage, copied = next(self._turns)
            copied.synchronize()
            staged = stage[: len(part)].copy_(part)
            target[start : start + self._part].copy_(staged, non_blocking=True)
            copied.record()
        return uploaded


def fetch(tensor: Tensor) -> Tensor:
    """`tensor`, of any shape, on the host. From a GPU it is copied to new pinned memory asynchronously: it is
    there when the current stream has reached this point."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def no_memory(error: Exception) -> str | None:
    """`not enough memory: …`, one line, if `error` is an out-of-memory error, which has no type of its own in
    PyTorch on a CPU; else None."""
    full = isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
    reason = str(error).partition("\n")[0]
    return f"not enough memory{': ' * bool(reason)}{reason}" if full else None
