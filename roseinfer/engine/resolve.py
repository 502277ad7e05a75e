"""What `auto` means on this machine."""

from __future__ import annotations

import torch

from roseinfer.config import ConfigError, Device, Dtype

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def resolve_device(device: Device) -> torch.device:
    """The device to run on. Raises ConfigError for cuda without a usable GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was asked for, but PyTorch sees no GPU; use --device cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def resolve_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """auto is fp16 on a GPU, bf16 on a CPU whose matrix units take it, else fp32."""
    if dtype != "auto":
        return TORCH_DTYPES[dtype]
    if device.type == "cuda":
        return torch.float16
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def resolve_prefill_max_tokens(limit: int | None, device: torch.device) -> int:
    """A CPU is at its arithmetic peak with one prompt, so that more of them only wait for each other."""
    return limit or (2048 if device.type == "cuda" else 128)
