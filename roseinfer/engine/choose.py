"""Chooses what runs a step: CUDA graphs and kernels on a GPU, PyTorch operators elsewhere, as configured."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from functools import partial

import torch

from roseinfer.attention.backends import NEEDED, make_attention
from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.eager import EagerRunner
from roseinfer.engine.graphs import MixedSteps
from roseinfer.engine.ranks.group import RankGroup
from roseinfer.engine.ranks.messages import StepLimits
from roseinfer.engine.ranks.runner import ParallelRunner
from roseinfer.engine.runner import Runner
from roseinfer.info import RunnerInfo
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.model import Model
from roseinfer.scheduler.speculation import MOST_ROWS

log = logging.getLogger(__name__)

#: Tokens whose keys and values a captured prefill step can gather from the KV cache; at least max_model_len.
#: Steps with more run eagerly.
_GATHER_TOKENS = 16_384


@dataclass(frozen=True)
class Chosen:
    """A runner, and its description."""

    runner: Runner
    info: RunnerInfo


def triton_runs(device: torch.device) -> bool:
    """Return whether this is a GPU, with Triton to compile for it."""
    if device.type != "cuda":
        return False
    if importlib.util.find_spec("triton") is None:
        log.warning("Triton is not installed: attention and small GEMMs fall back to PyTorch")
        return False
    return True


def _gather_buffer(pool: KVPool, dtype: torch.dtype, limits: StepLimits) -> torch.Tensor:
    """Memory for gathered keys and values of a layer, `[2, S, kv heads, dim]`. It is zeroed, because
    attention may read unused rows, with a weight of 0."""
    shape = pool.shape
    rows = max(_GATHER_TOKENS, limits.max_model_len)
    return torch.zeros(2, rows, shape.kv_heads, shape.head_dim, dtype=dtype, device=pool.device)


def choose_runner(
    config: EngineConfig,
    model: Model,
    pool: KVPool,
    dtype: torch.dtype,
    limits: StepLimits,
    group: RankGroup | None = None,
) -> Chosen:
    """The runner for `model` and `config`. `group`: on rank 0, the other ranks. Raises ConfigError where a
    setting cannot work here."""
    capacity = config.max_active_requests
    if config.batch_invariant and not model.rows_alone:
        raise ConfigError(f"--batch-invariant needs {NEEDED}")
    if not (config.paged_attn and triton_runs(pool.device)):
        backend = make_attention(
            pool,
            cpu_kernels=config.cpu_kernels,
            prefill_backend=config.prefill_backend,
            batch_invariant=config.batch_invariant,
        )
        runner_info = RunnerInfo(backend.decode, backend.prefill, prompt_logprobs=True)
        if group is not None:
            return Chosen(ParallelRunner(model, backend.attention, pool, capacity, group), runner_info)
        return Chosen(EagerRunner(model, backend.attention, pool, capacity), runner_info)

    from roseinfer.attention.cuda_paged import CudaPagedAttention
    from roseinfer.attention.prefill_backends import choose
    from roseinfer.engine.cuda import CudaRunner
    from roseinfer.engine.ranks.cuda_runner import ParallelCudaRunner
    from roseinfer.kernels.triton.prefill import MAX_DIM

    prefill = choose(config.prefill_backend, model.config.head_dim, dtype, pool.device)
    gathered = _gather_buffer(pool, dtype, limits) if prefill.gathered and limits.mixed.cut else None
    paged = CudaPagedAttention(pool, prefill.attend, gathered)
    if not config.cuda_graph:
        return Chosen(
            EagerRunner(model, paged, pool, capacity),
            RunnerInfo("triton", prefill.name, prompt_logprobs=True),
        )
    parts = model.decode_parts if config.decode_parts else {}
    make = CudaRunner if group is None else partial(ParallelCudaRunner, group)
    runner = make(
        model,
        paged,
        pool,
        capacity=capacity,
        max_blocks=-(-limits.max_model_len // config.block_size),
        max_batch=limits.max_batch_size,
        max_prompt_tokens=max(limits.prefill_max_tokens, limits.max_model_len, MOST_ROWS),
        pinned=config.pinned_staging,
        parts=parts,
    )
    mixed = limits.mixed if prefill.paged or not limits.mixed.cut else MixedSteps()
    verifies = config.speculate is not None and model.config.head_dim <= MAX_DIM
    runner.capture(prompts=prefill.capturable, mixed=mixed, verifies=verifies)
    sizes = runner.decode_sizes
    in_parts = tuple(size for size in sizes if size in parts)
    info = RunnerInfo("triton", prefill.name, sizes, config.pinned_staging, in_parts)
    return Chosen(runner, info)
