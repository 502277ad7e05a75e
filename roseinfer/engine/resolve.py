"""What `auto` means on this machine."""

from __future__ import annotations

import os

import torch

from roseinfer.config import ConfigError, Device, Dtype, EngineConfig, KVCacheDtype, Quantization
from roseinfer.e4m3 import E4M3
from roseinfer.scheduler.admission import Admission, Fifo, Pack
from roseinfer.scheduler.policies import (
    Alternate,
    ChunkedPrompts,
    Composition,
    FillUp,
    Policies,
    TakeAlong,
    WholePrompts,
    decode_first,
    prefill_first,
)

#: From so many cores on, processes that wait awake leave some to others.
_SPARE_CORES = 8
#: Bytes of weights from which on a GPU reads them once for prompts and next tokens. Smaller models, whose
#: steps with prompts have to be captured, do so from `_MANY` requests on, with `_ROWS` tokens of prompts.
#: Measured on an H200, 2026-11-22.
_LARGE, _MANY, _ROWS = 4 * 10**9, 128, 1024
#: Requests of a large model that wait or decode, and the rows of their steps. Few prompts are computed at
#: once, so that all decode together soon. Measured on an H200, 2026-11-24.
_STEP_ROWS = ((16, 8192), (47, 2048), (64, 768), (256, 2048))
TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def resolve_device(device: Device) -> torch.device:
    """The device to run on. Raises ConfigError for cuda without a usable GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was asked for, but PyTorch sees no GPU; use --device cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def resolve_dtype(
    dtype: Dtype, device: torch.device, quantization: Quantization | None = None
) -> torch.dtype:
    """auto is fp16 on a GPU, where quantized weights want bf16; bf16 on a CPU whose matrix units take it,
    else fp32."""
    if dtype != "auto":
        return TORCH_DTYPES[dtype]
    if device.type == "cuda":
        return torch.float16 if quantization is None else torch.bfloat16
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def resolve_cache_dtype(wanted: KVCacheDtype, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Of cached keys and values of a model in `dtype`. Raises ConfigError where the GPU cannot convert it."""
    if wanted == "auto":
        return dtype
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < (8, 9):
        raise ConfigError(
            f"--kv-cache-dtype fp8 needs a GPU of compute capability 8.9 or later, and this one has "
            f"{found[0]}.{found[1]}; use --kv-cache-dtype auto"
        )
    return E4M3


def resolve_policies(config: EngineConfig, device: torch.device, weights: int = 0) -> Policies:
    """What a step may hold, of a model of so many bytes of weights if it computes prompts and next tokens at
    once, else 0.

    A CPU is at its arithmetic peak with one prompt, so that more of them only wait for each other.
    """
    admissions: dict[str, Admission] = {"fifo": Fifo(), "pack": Pack(config.admission_lookahead)}
    chunk = config.chunked_prefill_size
    return Policies(
        max_batch_size=min(config.max_batch_size or config.max_active_requests, config.max_active_requests),
        prefill_max_batch_size=config.prefill_max_batch_size,
        prefill_max_tokens=config.prefill_max_tokens or _prompt_tokens(device, weights),
        admission=admissions[config.admission_policy],
        chunking=WholePrompts() if chunk is None else ChunkedPrompts(chunk),
        composition=resolve_composition(config, device, weights),
    )


def _prompt_tokens(device: torch.device, weights: int) -> int:
    if device.type != "cuda":
        return 128
    return 8192 if weights > _LARGE else 4096


def resolve_composition(config: EngineConfig, device: torch.device, weights: int) -> Composition:
    """What a step is made of. A GPU computes its prompts and its decoding requests one after the other, but
    for a model that does both at once: a large one always, others for many requests."""
    if not config.decode_first:
        return prefill_first
    mixed = device.type != "cuda" if config.mixed_steps is None else config.mixed_steps
    if mixed:
        return decode_first
    if config.mixed_steps is None and weights > _LARGE:
        chunk = config.chunked_prefill_size
        return FillUp(_STEP_ROWS if chunk is None else ((config.max_active_requests, chunk),))
    if config.mixed_steps is None and weights and config.chunked_prefill_size is None:
        return TakeAlong(_MANY, _ROWS)
    return Alternate()


def resolve_spin_ms(config: EngineConfig, device: torch.device) -> float:
    """Waiting awake takes no core from the work where a GPU computes and there are cores to spare."""
    if config.spin_ms is not None:
        return config.spin_ms
    return 1000.0 if device.type == "cuda" and len(os.sched_getaffinity(0)) >= _SPARE_CORES else 0.0
