"""Loads a model folder, with the linear layers and kernels that suit its device."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

import torch

from roseinfer.config import ConfigError, Quantization
from roseinfer.kernels.cpu.build import BuildError
from roseinfer.model_folder import model_folder
from roseinfer.models import config
from roseinfer.models.config import HybridConfig, LlamaConfig, ModelConfig
from roseinfer.models.cpu import CpuLinear, CpuOps
from roseinfer.models.fp8 import Fp8Linear
from roseinfer.models.gpt2 import GPT2
from roseinfer.models.hybrid import Hybrid
from roseinfer.models.linear import Linear, OneDnnLinear, WidenedLinear
from roseinfer.models.llama import Llama
from roseinfer.models.llama_cpu import CpuLlama
from roseinfer.models.model import Model
from roseinfer.models.ops import Ops
from roseinfer.models.ranks import ALONE, GlooRanks, Ranks
from roseinfer.models.shard import Shard
from roseinfer.models.weights import DrawnWeights, ShardWeights, Weights

log = logging.getLogger(__name__)


def load(
    model: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    max_model_len: int | None = None,
    packed: bool = True,
    cpu_kernels: bool = True,
    cpu_linear: bool = True,
    prepared: bool = True,
    fused: bool = False,
    quantization: Quantization | None = None,
    shard: Shard | None = None,
) -> Model:
    """The model `model`: a local folder in Hugging Face layout, a name of rosemodels, or a hub id.

    Args:
        max_model_len: The context in tokens, if it is shorter than the model's own.
        shard: This process's shard of it; on a GPU only of a Llama, with `fused`. The ranks communicate
            through the model's `ranks`, to be connected before the model is used.

    Raises:
        ConfigError: It cannot be quantized or divided as asked.
    """
    folder = model_folder(model)
    shape = config.read(folder)
    weights = weights_of(folder, shape, device)
    if shape.tied_head and weights.has_other_head(shape):
        shape = replace(shape, tied_head=False)
        if shard is None or shard.rank == 0:
            log.warning("the config ties the LM head to the embeddings; lm_head.weight differs and is used")
    if max_model_len is not None and isinstance(shape, LlamaConfig):  # RoPE's frequencies stay the same
        shape = replace(shape, max_positions=min(max_model_len, shape.max_positions))
    ranks: Ranks = ALONE
    if shard is not None:
        part = shard_config(shape, shard, device)
        if isinstance(weights, DrawnWeights):
            raise ConfigError(f"--tensor-parallel-size above 1 needs the weights of {model} in files")
        weights, ranks = ShardWeights(folder, shard, shape, device), ranks_of(shard, shape, device, dtype)
        shape = part
    linear = linear_kind(shape, device, dtype, packed=packed, kernel=cpu_kernels and cpu_linear)
    if quantization is not None:
        return _fp8(shape, weights, device, dtype, head=linear, fused=fused, ranks=ranks)
    if isinstance(shape, LlamaConfig):
        ops = _ops(shape, device, dtype, cpu_kernels=cpu_kernels)
        if isinstance(shape, HybridConfig) and fused:
            from roseinfer.models.hybrid_cuda import CudaHybrid

            return CudaHybrid(shape, weights, device, dtype, linear=linear, ops=ops)
        if isinstance(shape, HybridConfig):
            return Hybrid(shape, weights, device, dtype, linear=linear, ops=ops)
        if fused:
            from roseinfer.models.llama_cuda import CudaLlama

            return CudaLlama(shape, weights, device, dtype, linear=linear, ops=ops, ranks=ranks)
        prepared = prepared and linear is CpuLinear and isinstance(ops, CpuOps) and ranks is ALONE
        prepared = prepared and shape.mixture is None
        kind = CpuLlama if prepared else Llama
        return kind(shape, weights, device, dtype, linear=linear, ops=ops, ranks=ranks)
    if fused:
        from roseinfer.models.gpt2_cuda import CudaGPT2

        return CudaGPT2(shape, weights, device, dtype, linear=linear)
    return GPT2(shape, weights, device, dtype, linear=linear, ranks=ranks)


def weights_of(folder: Path, shape: ModelConfig, device: torch.device) -> Weights:
    """The weights in `folder`, or those that it says are random."""
    return DrawnWeights.of(folder, shape, device) or Weights(folder, tied=shape.tied_table, device=device)


def shard_config(whole: ModelConfig, shard: Shard, device: torch.device) -> ModelConfig:
    """The shape of a shard of the model `whole`. Raises ConfigError where it cannot be divided so."""
    if isinstance(whole, HybridConfig):
        raise ConfigError("--tensor-parallel-size above 1 does not work for Qwen3.5's gated delta layers")
    if device.type != "cpu" and not isinstance(whole, LlamaConfig):
        raise ConfigError("--tensor-parallel-size above 1 on GPUs works with models of the Llama family")
    if device.type != "cpu" and isinstance(whole, LlamaConfig) and whole.mixture is not None:
        raise ConfigError("--tensor-parallel-size above 1 works for mixtures of experts on CPUs only")
    return shard.config(whole)


def ranks_of(shard: Shard, shape: ModelConfig, device: torch.device, dtype: torch.dtype) -> Ranks:
    if device.type == "cpu":
        return GlooRanks(shard, shape.vocab_size)
    from roseinfer.models.cuda_ranks import CudaRanks

    return CudaRanks(shard, shape.vocab_size, shape.width, dtype)


def _fp8(
    shape: ModelConfig, weights: Weights, device: torch.device, dtype: torch.dtype, *, head: type[Linear],
    fused: bool, ranks: Ranks,
) -> Model:  # fmt: skip
    if not isinstance(shape, LlamaConfig) or isinstance(shape, HybridConfig):
        raise ConfigError("--quantization fp8 works with models of the Llama family")
    sizes = shape.width, *shape.ffn_widths, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if not Fp8Linear.supports(device, dtype, math.gcd(*sizes)):
        raise ConfigError(
            "--quantization fp8 on a GPU needs --dtype bf16, compute capability 8.9 and widths that are "
            "multiples of 16, on each rank"
        )
    if fused:
        from roseinfer.models.llama_cuda import Fp8CudaLlama

        return Fp8CudaLlama(
            shape, weights, device, dtype, linear=Fp8Linear, ops=Ops(), head=head, ranks=ranks
        )
    return Llama(shape, weights, device, dtype, linear=Fp8Linear, ops=Ops(), head=head, ranks=ranks)


def linear_kind(
    shape: ModelConfig, device: torch.device, dtype: torch.dtype, *, packed: bool, kernel: bool
) -> type[Linear]:
    if not packed:
        return Linear
    try:
        if kernel and CpuLinear.supports(shape, device, dtype):
            return CpuLinear
    except BuildError as error:
        log.warning("CPU kernels are off, linear layers fall back to oneDNN: %s", error)
    if OneDnnLinear.supports(device, dtype):
        return OneDnnLinear
    return WidenedLinear if WidenedLinear.supports(device, dtype) else Linear


def _ops(shape: ModelConfig, device: torch.device, dtype: torch.dtype, *, cpu_kernels: bool) -> Ops:
    if cpu_kernels and CpuOps.supports(shape, device, dtype):
        try:
            return CpuOps()
        except BuildError as error:
            log.warning("CPU kernels are off, Llama's norms and rotations fall back to PyTorch: %s", error)
    return Ops()
