"""Loads an engine's model, or a tensor-parallel rank's shard of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import distributed as dist

from roseinfer.config import REPLICA, REPLICAS, ConfigError, EngineConfig
from roseinfer.engine.choose import triton_runs
from roseinfer.engine.resolve import resolve_cache_dtype, resolve_device, resolve_dtype
from roseinfer.kvcache.pool import KVShape
from roseinfer.model_folder import model_folder
from roseinfer.models.config import read
from roseinfer.models.load import load, shard_config
from roseinfer.models.model import Model
from roseinfer.models.shard import Shard


@dataclass(frozen=True)
class LoadedModel:
    """A model, its device, and the dtypes of its weights and of its KV cache."""

    model: Model
    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype

    @property
    def kv_shape(self) -> KVShape:
        """A token's entry in the KV cache."""
        return self.model.config.kv_shape(self.cache_dtype)


def check_ranks(config: EngineConfig) -> None:
    """Raise ConfigError where these settings or the model's shape do not work with tensor parallelism."""
    ranks = config.tensor_parallel_size
    if ranks == 1:
        return
    if config.batch_invariant:
        raise ConfigError("--tensor-parallel-size above 1 works without --batch-invariant")
    device = resolve_device(config.device)
    if device.type != "cpu":
        _check_gpu_ranks(config, device)
    shard_config(read(model_folder(config.model)), Shard(0, ranks), device)


def _check_gpu_ranks(config: EngineConfig, device: torch.device) -> None:
    if not triton_runs(device):
        raise ConfigError("--tensor-parallel-size above 1 on GPUs needs Triton: pip install triton")
    if resolve_dtype(config.dtype, device, config.quantization) == torch.float32:
        raise ConfigError("--tensor-parallel-size above 1 on GPUs needs --dtype fp16 or bf16")
    if not (config.fused_ops and config.cuda_graph and config.paged_attn):
        raise ConfigError(
            "--tensor-parallel-size above 1 on GPUs needs --fused-ops, --cuda-graph and --paged-attn"
        )
    if dist.is_initialized():
        raise ConfigError("a process can have one engine on several GPUs: start another process for this one")


def own_gpu(rank: int, ranks: int, environment: Mapping[str, str]) -> torch.device:
    """The GPU of `rank`. Engines that share the machine (data parallelism, as `environment` says) take
    `ranks` GPUs each, one after the other. Raises ConfigError where there are too few."""
    replicas, replica = (
        int(environment.get(name, default)) for name, default in ((REPLICAS, 1), (REPLICA, 0))
    )
    if (count := torch.cuda.device_count()) < replicas * ranks:
        raise ConfigError(
            f"--data-parallel-size {replicas} with --tensor-parallel-size {ranks} needs "
            f"{replicas * ranks} GPUs; PyTorch sees {count}"
        )
    return torch.device("cuda", replica * ranks + rank)


def load_model(config: EngineConfig, rank: int = 0) -> LoadedModel:
    """The shard of `rank`; the whole model without tensor parallelism. Sets this process's CPU threads.

    Raises:
        ConfigError: There is no such model, or a setting cannot work with it here.
    """
    device = resolve_device(config.device)
    ranks = config.tensor_parallel_size
    if device.type == "cuda":
        device = own_gpu(rank, ranks, os.environ)
        torch.cuda.set_device(device)
    dtype = resolve_dtype(config.dtype, device, config.quantization)
    threads = config.threads if ranks == 1 else max(1, (config.threads or torch.get_num_threads()) // ranks)
    if threads is not None:
        torch.set_num_threads(threads)
    model = load(
        config.model,
        device,
        dtype,
        max_model_len=config.max_model_len,
        packed=config.packed_weights,
        cpu_kernels=config.cpu_kernels,
        cpu_linear=config.cpu_linear,
        prepared=config.prepared_decode,
        fused=config.fused_ops and triton_runs(device),
        quantization=config.quantization,
        shard=Shard(rank, ranks, first_embeds=device.type == "cuda") if ranks > 1 else None,
    )
    return LoadedModel(model, device, dtype, resolve_cache_dtype(config.kv_cache_dtype, dtype, device))
