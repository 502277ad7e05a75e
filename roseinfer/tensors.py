"""Copies of arrays to a device and of tensors to the host, and the message of an out-of-memory error."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """`array`, of any shape, on `device`: on a CPU, in the same memory; to a GPU through pinned memory, so
    that the host does not wait for what is queued there."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


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
