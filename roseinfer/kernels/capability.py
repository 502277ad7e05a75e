"""What a device can do beyond computing."""

from __future__ import annotations

from functools import cache

import torch


@cache
def is_hopper(device: torch.device) -> bool:
    """An NVIDIA GPU of compute capability 9.0 on: a kernel can start while the one before it ends, and thread
    blocks work in clusters."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
