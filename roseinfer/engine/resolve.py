"""The meaning of `auto`, and of settings that are not given, on this machine."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import torch

from roseinfer.config import ConfigError, Device, Dtype, EngineConfig, KVCacheDtype, Quantization
from roseinfer.e4m3 import E4M3
from roseinfer.engine.graphs import LARGE_ROWS, MixedSteps
from roseinfer.scheduler.admission import Admission, Fifo, Pack
from roseinfer.scheduler.cost import UNLIMITED, StepCosts
from roseinfer.scheduler.policies import (
    Alternate,
    ChunkedPrompts,
    Composition,
    Policies,
    TakeAlong,
    WholePrompts,
    decode_first,
    prefill_first,
)
from roseinfer.scheduler.weighed import AIMS, Aim, Weighed

log = logging.getLogger(__name__)

#: With at least this many cores, processes that busy-wait leave enough to others.
_SPARE_CORES = 8
#: Longer than a client of a closed loop needs for its next request, and than most prompts until their first
#: token: a core that wakes up takes 0.1 ms and more.
_SPIN_MS = 20.0
#: A GPU weighs steps by their cost for models of more than `LARGE` bytes of weights, whose mixed steps are
#: captured. Steps of smaller models mix prefill and decode from `_MANY` requests on, with `_ROWS` prompt
#: tokens a step. Measured on an H200, 2026-11-22.
LARGE, _MANY, _ROWS = 4 * 10**9, 128, 1024
#: Requests of one client that decode in a step on a CPU, where each costs, while another client has no more.
_CLIENT_ROWS = 16
TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def resolve_device(device: Device) -> torch.device:
    """The device to run on. Raises ConfigError for cuda without a usable GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda was asked for, but PyTorch sees no GPU; use --device cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def resolve_dtype(
    dtype: Dtype, device: torch.device, quantization: Quantization | None = None
) -> torch.dtype:
    """auto is fp16 on a GPU, or bf16 with quantized weights; on a CPU bf16 if oneDNN supports it there, else
    fp32."""
    if dtype != "auto":
        return TORCH_DTYPES[dtype]
    if device.type == "cuda":
        return torch.float16 if quantization is None else torch.bfloat16
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def resolve_cache_dtype(cache_dtype: KVCacheDtype, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The KV cache's dtype for a model in `dtype`. Raises ConfigError where the GPU cannot convert to it."""
    if cache_dtype == "auto":
        return dtype
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < (8, 9):
        raise ConfigError(
            f"--kv-cache-dtype fp8 needs a GPU of compute capability 8.9 or later, and this one has "
            f"{capability[0]}.{capability[1]}; use --kv-cache-dtype auto"
        )
    return E4M3


def resolve_policies(config: EngineConfig, device: torch.device, weights: int = 0) -> Policies:
    """The scheduling policies. `weights`: bytes of the model's weights if it computes prefill and decode rows
    in one forward pass, else 0.

    On a CPU one prompt is compute-bound already: more prompts in a step would only wait for each other.
    """
    admissions: dict[str, Admission] = {"fifo": Fifo(), "pack": Pack(config.admission_lookahead)}
    chunk = config.chunked_prefill_size
    of_client = None if device.type == "cuda" else _CLIENT_ROWS
    most = 128 if device.type != "cuda" else 8192 if weights > LARGE else 4096
    most, costs = config.prefill_max_tokens or most, StepCosts()
    composition = resolve_composition(config, device, weights, costs, most)
    if isinstance(composition, Weighed) and chunk is not None:
        most = min(most, chunk)
    return Policies(
        max_batch_size=min(config.max_batch_size or config.max_active_requests, config.max_active_requests),
        client_batch_size=config.client_batch_size or of_client,
        prefill_max_batch_size=config.prefill_max_batch_size,
        prefill_max_tokens=most,
        admission=admissions[config.admission_policy],
        chunking=WholePrompts() if chunk is None else ChunkedPrompts(chunk),
        composition=composition,
        costs=costs if isinstance(composition, Weighed) else None,
    )


def resolve_composition(
    config: EngineConfig, device: torch.device, weights: int, costs: StepCosts, most: int
) -> Composition:
    """Return how steps are composed: by switches that say it, else by limits and what is preferred.

    A GPU alternates between prefill and decode steps, unless the model computes both in one forward pass: a
    large model's steps are weighed, others mix with many requests. `most`: prompt tokens of a step.
    """
    on_gpu, prefer, chunk = device.type == "cuda", config.prefer, config.chunked_prefill_size
    if not config.decode_first:
        return prefill_first
    if config.mixed_steps is not None:
        return decode_first if config.mixed_steps else Alternate()
    tpot, ttft = (ms and ms / 1e3 for ms in (config.target_tpot_ms, config.target_ttft_ms))
    if tpot or ttft or (weights > LARGE if on_gpu else prefer == "latency"):
        aim = AIMS[prefer] if chunk is None else Aim(pace=UNLIMITED)
        rows = chunk or LARGE_ROWS if on_gpu and weights else None
        return Weighed(costs, aim, rows=rows, most=most, tpot=tpot, ttft=ttft)
    if prefer == "first-token" or (on_gpu and prefer == "throughput" and not weights):
        return prefill_first
    if not on_gpu:
        return decode_first
    return TakeAlong(_MANY, _ROWS) if weights and chunk is None else Alternate()


def without_rewinding(config: EngineConfig) -> EngineConfig:
    """Return the settings for a model whose requests have recurrent states, which exist for their newest
    token alone; what is switched off is logged."""
    if config.prefix_cache:
        log.warning("the prefix cache is off: it has no states of this model's recurrent layers")
    if config.speculate is not None:
        log.warning("speculation is off: this model's recurrent states would keep rejected tokens")
    return replace(config, prefix_cache=False, speculate=None)


def resolve_spin_ms(config: EngineConfig, device: torch.device) -> float:
    """By default processes busy-wait only where a GPU computes and there are cores to spare."""
    if config.spin_ms is not None:
        return config.spin_ms
    return _SPIN_MS if device.type == "cuda" and len(os.sched_getaffinity(0)) >= _SPARE_CORES else 0.0


def resolve_settings(
    config: EngineConfig, device: torch.device, policies: Policies, max_model_len: int, blocks: int
) -> EngineConfig:
    """Return the settings without `auto`, and without None for what has a default; one without effect is
    None. `blocks`: blocks of the KV cache."""
    on_gpu = device.type == "cuda"
    overlap = on_gpu if config.overlap_schedule is None else config.overlap_schedule
    late = on_gpu and config.tensor_parallel_size == 1 if config.late_launch is None else config.late_launch
    mixed = policies.composition is decode_first or isinstance(policies.composition, Weighed | TakeAlong)
    return replace(
        config,
        device="cuda" if on_gpu else "cpu",
        max_model_len=max_model_len,
        kv_tokens=blocks * config.block_size,
        max_batch_size=policies.max_batch_size,
        client_batch_size=policies.client_batch_size,
        prefill_max_tokens=policies.prefill_max_tokens,
        chunked_prefill_size=chunk_size(config, policies),
        mixed_steps=mixed,
        overlap_schedule=overlap,
        late_launch=late and overlap,
        threads=config.tensor_parallel_size * torch.get_num_threads(),
        spin_ms=resolve_spin_ms(config, device),
    )


def chunk_size(config: EngineConfig, policies: Policies) -> int | None:
    """The most tokens of one prompt in a step; None where prompts are not chunked."""
    composition = policies.composition
    if isinstance(composition, Weighed) and composition.rows:
        return min(policies.prefill_max_tokens, composition.most_rows)
    return config.chunked_prefill_size


def captured_steps(policies: Policies, capacity: int) -> MixedSteps:
    """Return the mixed prefill-decode steps to capture as CUDA graphs, for `capacity` running rows."""
    composition = policies.composition
    if isinstance(composition, Weighed) and composition.rows:
        return MixedSteps(min(LARGE_ROWS, composition.rows), cut=True)
    if isinstance(composition, TakeAlong) and capacity >= composition.requests:
        return MixedSteps(composition.rows)
    return MixedSteps()
