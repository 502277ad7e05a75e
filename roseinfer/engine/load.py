"""Loads the model of an engine, or a rank's part of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.choose import triton_runs
from roseinfer.engine.resolve import resolve_device, resolve_dtype
from roseinfer.models.load import load
from roseinfer.models.model import Model
from roseinfer.models.shard import Shard


@dataclass(frozen=True)
class LoadedModel:
    """A model, where it is, and in which dtype."""

    model: Model
    device: torch.device
    dtype: torch.dtype


def check_ranks(config: EngineConfig) -> None:
    """Raises ConfigError where an engine of several processes cannot have these settings."""
    cpu = resolve_device(config.device).type == "cpu"
    if config.tensor_parallel_size > 1 and (not cpu or config.quantization or config.batch_invariant):
        raise ConfigError(
            "tensor_parallel_size above 1 works with --device cpu, without --quantization and "
            "--batch-invariant"
        )


def load_model(config: EngineConfig, rank: int = 0) -> LoadedModel:
    """The part of `rank`, all of it where the engine has one process; sets this process's threads.

    Raises:
        ConfigError: There is no such model, or a setting cannot work with it here.
    """
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device, config.quantization)
    ranks = config.tensor_parallel_size
    threads = config.threads if ranks == 1 else max(1, (config.threads or torch.get_num_threads()) // ranks)
    if threads is not None:
        torch.set_num_threads(threads)
    model = load(
        config.model,
        device,
        dtype,
        packed=config.packed_weights,
        cpu_kernels=config.cpu_kernels,
        cpu_linear=config.cpu_linear,
        fused=config.fused_ops and triton_runs(device),
        quantization=config.quantization,
        shard=Shard(rank, ranks) if ranks > 1 else None,
    )
    return LoadedModel(model, device, dtype)
