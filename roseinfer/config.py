"""What an engine is started with. Every feature has its switch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Device = Literal["auto", "cuda", "cpu"]
Dtype = Literal["auto", "fp16", "bf16", "fp32"]

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class ConfigError(Exception):
    """A setting that cannot work. The message says which, and what would."""


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine. `auto` and None are resolved once, by `resolve_*` and the engine's start-up."""

    model: str
    device: Device = "auto"
    dtype: Dtype = "auto"
    max_model_len: int | None = None
    block_size: int = 16
    kv_tokens: int | None = None
    max_active_requests: int = 256
    prefill_max_batch_size: int = 64
    prefill_max_tokens: int = 2048
    threads: int | None = None
    packed_weights: bool = True
    cpu_kernels: bool = True
    warmup: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("block_size", "max_active_requests", "prefill_max_batch_size", "prefill_max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        for name in ("max_model_len", "kv_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1")


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
