"""Hardware features of a device."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

#: Bytes of shared memory that a block of threads may have on an H100 or H200.
HOPPER_SHARED = 227 * 1024


@cache
def is_hopper(device: torch.device) -> bool:
    """Return whether it is an NVIDIA GPU of compute capability 9.0 or later, which has programmatic dependent
    launch (a kernel can start while the one before it ends) and thread block clusters."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def is_large_hopper(device: torch.device) -> bool:
    """Return whether a block also has as much shared memory as on an H100, as kernels in CUDA C++ with ring
    buffers need: compute capability 12.0 has less."""
    return is_hopper(device) and shared_memory(device) >= HOPPER_SHARED


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block of threads may have: 99 KiB on many GPUs. As on an H100 where
    kernels are interpreted, or PyTorch does not say."""
    if device.type != "cuda":
        return HOPPER_SHARED
    properties: Any = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", HOPPER_SHARED))
