"""Decode attention with grouped queries (GQA), fused with QK norm, RoPE and the append to the cache: see
`gqa_decode.cu`.

Half precision, head sizes 64, 128 and 256, at most 8 query heads for each KV head, on GPUs of compute
capability 9.0 or later. References: `Ops.rotate`, then `TorchPagedAttention`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from roseinfer.e4m3 import E4M3
from roseinfer.kernels.capability import is_large_hopper
from roseinfer.kernels.cuda.build import available, kernel

_GROUP = 16
#: Clusters of four blocks, each with an SM of its own, that run at the same time on an H200: they do not
#: fill its GPCs. Measured, 2026-11-26: the 32 of four requests do not run at once, and take 13.3 µs;
#: clusters of two blocks take 8.3. Not measured between 24 and 32.
_CLUSTERS = 24
#: Tokens of a request, on average, at which the configuration can change. From the second on blocks of many
#: warps are faster, with which few long requests do not hold up the others; from the third on more splits.
#: Measured on an H200, 2026-11-26, with contexts that are on average 250 to 1,100 tokens, and with one
#: request of 32,000 (docs/notes/h200-llama.md). Not measured in between: 8,192 is an estimate.
CONTEXTS = (0, 512, 8192)


@dataclass(frozen=True)
class Heads:
    """A layer's numbers of query heads and of KV heads (`keys`), and the head size."""

    queries: int
    keys: int
    dim: int


@dataclass(frozen=True)
class Rotation:
    """Norms and rotary embeddings of queries and keys: `turns` `[positions, 2, dim / 2]` float32, cos and sin
    for every position; gains `[dim]` of the RMS norms, or None."""

    turns: Tensor
    q_gain: Tensor | None
    k_gain: Tensor | None
    eps: float


@dataclass(frozen=True)
class How:
    """Launch configuration: `warps` of a block, groups of 16 tokens in flight for each warp (`depth`), and
    blocks that share a request's tokens (`splits`, flash decoding)."""

    warps: int = 4
    depth: int = 2
    splits: int = 1


def supports(heads: Heads, block_size: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the kernel exists for this shape, and can be compiled and run."""
    return (
        heads.dim in (64, 128, 256)
        and heads.queries <= 8 * heads.keys
        and block_size % _GROUP == 0
        and dtype in (torch.float16, torch.bfloat16)
        and is_large_hopper(device)
        and available()
    )


def how_for(requests: int, keys: int, context: int = 0, dim: int = 128) -> How:
    """The fastest configuration for so many requests and KV heads of size `dim`, the requests having at least
    `context` tokens on average. Measured on an H200 with 8 KV heads of 128, 2026-11-22 and 2026-11-26."""
    if dim > 128:  # as many bytes in flight with half as many warps
        how = how_for(requests, keys, context)
        return replace(how, warps=max(2, how.warps // 2))
    places = requests * keys
    if places <= _CLUSTERS:
        return How(8, splits=8 if places <= _CLUSTERS // 2 and context >= CONTEXTS[2] else 4)
    if places <= 132:
        return How(8, splits=2 if places <= 32 else 1)
    if context >= CONTEXTS[1]:
        return How(8)
    return How(4) if places <= 1024 else How(2)


def gqa_decode(
    qkv: Tensor, heads: Heads, rotation: Rotation, cache: tuple[Tensor, Tensor], table: Tensor, rows: Tensor,
    lengths: Tensor, block_size: int, config: How | None = None, out: Tensor | None = None, context: int = 0,
) -> Tensor:  # fmt: skip
    """Apply norms and rotary embeddings to queries and keys, append keys and values to the cache, and attend.

    Args:
        qkv: `[D, (queries + 2 · keys) · dim]`, a row is contiguous.
        cache: one layer's keys and values, `[slots, keys, dim]` each, in the dtype of `qkv` or in E4M3.
        table, rows, lengths: as in `roseinfer.kernels.triton.paged_decode`; a row's position is its length
            less one.
        context: as in `how_for`, which `config` overrides.

    Returns:
        `[D, queries · dim]` in the dtype of `qkv`, in `out` where it is given, contiguous.
    """
    count, device = len(qkv), qkv.device
    config = config or how_for(count, heads.keys, context, heads.dim)
    if out is None:
        out = torch.empty(count, heads.queries * heads.dim, dtype=qkv.dtype, device=device)
    normed, fp8 = rotation.q_gain is not None, cache[0].dtype == E4M3
    run = kernel(
        "gqa_decode", "gqa_decode", ("BF16", int(qkv.dtype == torch.bfloat16)), ("DIM", heads.dim),
        ("HEADS", heads.queries), ("KV_HEADS", heads.keys), ("BLOCK_SIZE", block_size),
        ("SPLITS", config.splits), ("WARPS", config.warps), ("DEPTH", config.depth), ("NORM", int(normed)),
        ("EPS", rotation.eps), ("FP8", int(fp8)),
    )  # fmt: skip
    stage_bytes = 2 * heads.dim + 48 if fp8 else 4 * heads.dim + 80
    run(
        (count, heads.keys, config.splits),
        32 * config.warps,
        [
            qkv, qkv.stride(0), qkv if rotation.q_gain is None else rotation.q_gain,
            qkv if rotation.k_gain is None else rotation.k_gain, rotation.turns, *cache, table,
            table.stride(0), rows, lengths, out,
        ],
        shared_bytes=config.warps * config.depth * _GROUP * stage_bytes,
        beside=True,
    )  # fmt: skip
    return out
