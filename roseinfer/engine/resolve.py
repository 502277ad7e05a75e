"""What `auto` means on this machine."""

from __future__ import annotations

import os

import torch

from roseinfer.config import ConfigError, Device, Dtype, EngineConfig
from roseinfer.scheduler.admission import Admission, Fifo, Pack
from roseinfer.scheduler.policies import (
    Alternate,
    ChunkedPrompts,
    Composition,
    Policies,
    WholePrompts,
    decode_first,
    prefill_first,
)

#: From so many cores on, processes that wait awake leave some to others.
_SPARE_CORES = 8
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


def resolve_policies(config: EngineConfig, device: torch.device) -> Policies:
    """What a step may hold.

    A CPU is at its arithmetic peak with one prompt, so that more of them only wait for each other.
    """
    admissions: dict[str, Admission] = {"fifo": Fifo(), "pack": Pack(config.admission_lookahead)}
    chunk = config.chunked_prefill_size
    return Policies(
        max_batch_size=min(config.max_batch_size or config.max_active_requests, config.max_active_requests),
        prefill_max_batch_size=config.prefill_max_batch_size,
        prefill_max_tokens=config.prefill_max_tokens or (4096 if device.type == "cuda" else 128),
        admission=admissions[config.admission_policy],
        chunking=WholePrompts() if chunk is None else ChunkedPrompts(chunk),
        composition=resolve_composition(config, device),
    )


def resolve_composition(config: EngineConfig, device: torch.device) -> Composition:
    """What a step is made of; a GPU computes its prompts and its decoding requests one after the other."""
    if not config.decode_first:
        return prefill_first
    mixed = device.type != "cuda" if config.mixed_steps is None else config.mixed_steps
    return decode_first if mixed else Alternate()


def resolve_spin_ms(config: EngineConfig, device: torch.device) -> float:
    """Waiting awake takes no core from the work where a GPU computes and there are cores to spare."""
    if config.spin_ms is not None:
        return config.spin_ms
    return 1000.0 if device.type == "cuda" and len(os.sched_getaffinity(0)) >= _SPARE_CORES else 0.0
