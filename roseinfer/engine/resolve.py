"""What `auto` means on this machine."""

from __future__ import annotations

import torch

from roseinfer.config import ConfigError, Device, Dtype, EngineConfig
from roseinfer.scheduler.admission import Admission, Fifo, Pack
from roseinfer.scheduler.policies import ChunkedPrompts, Policies, WholePrompts, decode_first, prefill_first

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
        prefill_max_tokens=config.prefill_max_tokens or (2048 if device.type == "cuda" else 128),
        admission=admissions[config.admission_policy],
        chunking=WholePrompts() if chunk is None else ChunkedPrompts(chunk),
        composition=decode_first if config.decode_first else prefill_first,
    )
