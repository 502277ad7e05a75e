"""What `auto` means on this machine, once for all engines."""

from __future__ import annotations

from typing import Literal

from harness.errors import UsageError
from harness.spec.settings import Device, Dtype
from harness.telemetry import gpu


def resolve_device(device: Device) -> Literal["cuda", "cpu"]:
    """auto is the GPU where there is one. Raises UsageError for cuda without a GPU."""
    if device == "cpu":
        return "cpu"
    if gpu.available():
        return "cuda"
    if device == "cuda":
        raise UsageError("device cuda was asked for, but there is no usable NVIDIA GPU", "use --device cpu")
    return "cpu"


def resolve_dtype(dtype: Dtype, device: Literal["cuda", "cpu"]) -> Literal["fp16", "bf16", "fp32"]:
    """auto is fp16 on a GPU and bf16 on a CPU."""
    if dtype != "auto":
        return dtype
    return "fp16" if device == "cuda" else "bf16"
