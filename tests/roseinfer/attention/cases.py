"""Steps of attention on a CPU, against the definition in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from roseinfer.attention.backends import make_attention
from roseinfer.attention.base import Attention
from roseinfer.config import PrefillBackend
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.config import parse
from tests.roseinfer.conftest import lay_out, make_batch, reference_attention

SHAPE = parse({"model_type": "gpt2"})


@dataclass(frozen=True)
class Case:
    """`prompts`: cached and new tokens of each; `lengths`: tokens of each request that decodes, the new one
    included; heads = groups · kv_heads. `fused`: q, k and v are parts of one tensor."""

    prompts: list[tuple[int, int]]
    lengths: list[int]
    kv_heads: int
    groups: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    seed: int
    fused: bool = True


def cases(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Case]:
    """Cases with these prompts, lengths and dtypes."""
    return st.builds(
        Case, kv_heads=st.integers(1, 4), groups=st.integers(1, 4), block_size=st.integers(1, 17),
        head_dim=st.sampled_from([16, 32, 48, 64, 80, 128]), seed=st.integers(0, 999), fused=st.booleans(),
        **parts,
    )  # fmt: skip


def check(
    case: Case,
    tolerance: float,
    *,
    cpu_kernels: bool = True,
    prefill_backend: PrefillBackend = "auto",
    first_query: float | None = None,
) -> Attention:
    """Check a step's result, relative to the largest value, and what it stores. Returns the attention."""
    generator = torch.Generator().manual_seed(case.seed)
    heads = (case.kv_heads * case.groups, case.kv_heads, case.kv_heads)
    config = replace(SHAPE, layers=2, heads=heads[0], kv_heads=case.kv_heads, head_dim=case.head_dim)
    parts = [*case.prompts, *((length - 1, 1) for length in case.lengths)]
    contexts, counts = zip(*parts, strict=True)
    blocks, table, slots = lay_out(
        [sum(part) for part in parts], case.block_size, np.random.default_rng(case.seed), spare=3
    )
    pool = KVPool(config.kv_shape(case.dtype), blocks, case.block_size, torch.device("cpu"))
    attention = make_attention(pool, cpu_kernels=cpu_kernels, prefill_backend=prefill_backend).attention

    rows = torch.randn(sum(counts), sum(heads), case.head_dim, generator=generator).to(case.dtype)
    q, k, v = rows.split(heads, dim=1) if case.fused else map(torch.clone, rows.split(heads, dim=1))
    if first_query is not None:
        q[0] = first_query
    keys, values = pool.layer(1)
    keys.normal_(generator=generator)
    values.normal_(generator=generator)
    attention.begin(make_batch(contexts, counts, table, slots, case.block_size, len(case.lengths)))
    out = attention.attend(1, q, k, v).double()
    starts = np.cumsum([0, *counts]).tolist()
    for start, end, context, slot in zip(starts, starts[1:], contexts, slots, strict=False):
        cached_k, cached_v = keys[torch.from_numpy(slot)], values[torch.from_numpy(slot)]
        assert torch.equal(cached_k[context:], k[start:end]) and torch.equal(cached_v[context:], v[start:end])
        expected = reference_attention(q[start:end], cached_k, cached_v)
        assert torch.equal(out[start:end].isnan(), expected.isnan())
        difference = (out[start:end] - expected).nan_to_num().abs().max()
        assert difference <= tolerance * expected.nan_to_num().abs().max()
    return attention
