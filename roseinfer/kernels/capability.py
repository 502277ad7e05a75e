"""Hardware features of a device."""

from __future__ import annotations

from functools import cache

import torch


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether it is an NVIDIA GPU of compute capability 9.0 or later, which has programmatic dependent launch
    (a kernel can start while the one before it ends) and thread block clusters."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
