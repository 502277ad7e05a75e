"""The context's length, and the size of the KV cache, within the memory of this machine."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import psutil
import torch

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.kvcache.pool import KVShape

log = logging.getLogger(__name__)

#: Fraction of the free memory that the KV cache takes when `kv_tokens` is not given.
KV_MEMORY_SHARE = {"cuda": 0.8, "cpu": 0.1}
#: The smallest `max_model_len`: warm-up generates two tokens after a prompt of one.
SHORTEST = 3


def resolve_memory_share(config: EngineConfig, device: torch.device) -> float | None:
    """`gpu_memory_utilization`, or None where `kv_tokens` leaves it without effect, which is logged. Raises
    ConfigError on a CPU."""
    share = config.gpu_memory_utilization
    if share is None:
        return None
    if device.type != "cuda":
        raise ConfigError("--gpu-memory-utilization needs a GPU; on a CPU give --kv-tokens alone")
    if config.kv_tokens is not None:
        log.warning("--gpu-memory-utilization has no effect with --kv-tokens")
        return None
    return share


def resolve_max_model_len(config: EngineConfig, max_positions: int) -> int:
    """The context in tokens, of a model with `max_positions`. Raises ConfigError."""
    length = config.max_model_len or max_positions
    if length > max_positions:
        raise ConfigError(f"--max-model-len {length} is above the model's {max_positions} positions")
    if length < SHORTEST:
        raise ConfigError(f"--max-model-len {length} is too small: give {SHORTEST} or more")
    return length


def num_blocks(
    config: EngineConfig, shapes: Sequence[KVShape], device: torch.device, max_model_len: int
) -> int:
    """Blocks of a KV cache of each of `shapes`: as configured, else as many as can be used within the memory
    that they may take. Raises ConfigError for too few."""
    blocks, size = configured_blocks(config, max_model_len), config.block_size
    if config.kv_tokens is None:
        sharing = 1 if device.type == "cuda" else config.tensor_parallel_size  # ranks in this memory
        block_bytes = sharing * size * sum(shape.bytes_per_token for shape in shapes)
        states = sum(shape.state.bytes for shape in shapes if shape.state is not None)
        states *= config.max_active_requests + 1
        free = max(0, kv_bytes(config, device)) - states
        if free < 0:
            raise ConfigError(
                f"the states of {config.max_active_requests} requests take {states / 2**30:,.1f} GiB, more "
                "than the KV cache may; give fewer --max-active-requests"
            )
        blocks = min(blocks, free // block_bytes)
    if blocks * size < min(max_model_len, max(SHORTEST, 2 * size)):
        larger = f"--kv-tokens {max_model_len}"
        if config.gpu_memory_utilization is not None:
            larger += " or a larger --gpu-memory-utilization"
        used = memory_in_use(device)
        raise ConfigError(f"{blocks * size} tokens of KV cache are too few{used}; give {larger}")
    return blocks


def configured_blocks(config: EngineConfig, max_model_len: int) -> int:
    """Blocks of a KV cache of `kv_tokens` tokens; if that is not given, of one that holds all active requests
    at their longest."""
    if config.kv_tokens is not None:
        return -(-config.kv_tokens // config.block_size)
    return config.max_active_requests * -(-max_model_len // config.block_size)


def memory_in_use(device: torch.device) -> str:
    """Describe, for an error, how much of a GPU's memory PyTorch has in this process, and how much others."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    sizes = (f"{size / 2**30:.1f}" for size in (total, reserved, total - free - reserved))
    return ": of {} GiB of the GPU {} are this model's, {} the CUDA context's and other processes'".format(
        *sizes
    )


def kv_bytes(config: EngineConfig, device: torch.device) -> int:
    """Return the bytes that the KV cache may take of the memory that is free once the weights are loaded."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available * KV_MEMORY_SHARE["cpu"])
    share = config.gpu_memory_utilization
    free, total = torch.cuda.mem_get_info(device)
    return int(free * KV_MEMORY_SHARE["cuda"] if share is None else free - (1 - share) * total)
