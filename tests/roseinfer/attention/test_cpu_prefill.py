"""Attention of prompts, in C++ and in PyTorch, against the definition in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.attention.backends import make_attention
from roseinfer.attention.cpu_prefill import CpuPrefillAttention
from roseinfer.batch import Batch, Segment
from roseinfer.kernels.cpu.build import has_bf16_products
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.config import parse
from tests.roseinfer.conftest import lay_out

CPU, BF16 = torch.device("cpu"), torch.bfloat16
SHAPE = parse({"model_type": "gpt2"})
needs_the_kernel = pytest.mark.skipif(not has_bf16_products(), reason="needs a processor with AVX-512")

#: Relative to the largest value: weights and result are rounded to 8 bits.
TOLERANCE = 2**-6


@dataclass(frozen=True)
class Case:
    """`prompts`: tokens cached before, and new ones; `decoding`: lengths of one-token rows with them."""

    prompts: list[tuple[int, int]]
    decoding: list[int]
    kv_heads: int
    groups: int
    head_dim: int
    block_size: int
    seed: int


CASES = st.builds(
    Case,
    prompts=st.lists(
        st.tuples(st.one_of(st.just(0), st.integers(1, 130)), st.integers(1, 60)), min_size=1, max_size=4
    ),
    decoding=st.lists(st.integers(1, 40), max_size=3),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    head_dim=st.sampled_from([16, 32, 48, 64, 80, 128]),
    block_size=st.integers(1, 17),
    seed=st.integers(0, 999),
)


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: int) -> torch.Tensor:
    """Causal attention of q `[count, heads, dim]` to k and v `[context + count, kv heads, dim]`, float64."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * q.shape[-1] ** -0.5
    later = torch.ones(len(q), len(k), dtype=torch.bool).triu(context + 1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), v).flatten(1)


def check(case: Case, *, kernel: bool, first_query: float | None = None) -> None:
    rng = np.random.default_rng(case.seed)
    generator = torch.Generator().manual_seed(case.seed)
    config = replace(
        SHAPE, layers=2, heads=case.kv_heads * case.groups, kv_heads=case.kv_heads, head_dim=case.head_dim
    )
    parts = [*case.prompts, *((length - 1, 1) for length in case.decoding)]  # context, new tokens
    lengths = [context + count for context, count in parts]
    num_blocks, tables, slots = lay_out(lengths, case.block_size, rng)
    pool = KVPool(config.kv_shape(BF16), num_blocks, case.block_size, CPU)
    made = make_attention(pool, cpu_kernels=True, prefill_backend="auto" if kernel else "sdpa")
    assert isinstance(made.attention, CpuPrefillAttention) == kernel

    starts = np.cumsum([0, *(count for _, count in parts)])
    prompts = [
        Segment(int(starts[i]), count, context, tables[i, : -(-context // case.block_size)], i)
        for i, (context, count) in enumerate(case.prompts)
    ]
    heads = (config.heads, config.kv_heads, config.kv_heads)
    rows = torch.randn(int(starts[-1]), sum(heads), config.head_dim, generator=generator).to(BF16)
    q, k, v = rows.split(heads, dim=1)
    if first_query is not None:
        q[0] = first_query
    keys, values = pool.layer(1)
    keys.normal_(generator=generator)
    values.normal_(generator=generator)
    order = np.arange(len(parts))
    made.attention.begin(
        Batch(
            tokens=np.zeros(starts[-1], dtype=np.int64), positions=np.zeros(starts[-1], dtype=np.int64),
            cache_slots=np.concatenate([s[context:] for s, (context, _) in zip(slots, parts, strict=True)]),
            segments=tuple(prompts), decode_lengths=np.array(case.decoding, dtype=np.int64),
            last_rows=starts[1:] - 1, requests=order, block_table=tables, block_size=case.block_size,
        )
    )  # fmt: skip
    out = made.attention.attend(1, q, k, v).double()
    for i, (context, _) in enumerate(parts):
        own, cached = slice(int(starts[i]), int(starts[i + 1])), torch.from_numpy(slots[i])
        assert torch.equal(keys[cached][context:], k[own]) and torch.equal(values[cached][context:], v[own])
        wanted = expected(q[own], keys[cached], values[cached], context)
        assert torch.equal(out[own].isnan(), wanted.isnan())
        assert (out[own] - wanted).nan_to_num().abs().max() <= TOLERANCE * wanted.nan_to_num().abs().max()


@needs_the_kernel
@settings(max_examples=150)
@given(CASES)
def test_kernel(case: Case) -> None:
    check(case, kernel=True)


@settings(max_examples=20)
@given(CASES)
def test_pytorch(case: Case) -> None:
    check(case, kernel=False)


@needs_the_kernel
def test_a_long_prompt_after_a_long_context() -> None:
    check(Case([(2100, 1000)], [], 2, 2, 64, 16, 1), kernel=True)


@needs_the_kernel
def test_a_nan_stays_a_nan_and_spoils_no_other_query() -> None:
    check(Case([(40, 30)], [7], 2, 2, 64, 16, 1), kernel=True, first_query=torch.nan)


def test_what_the_kernel_does_not_do() -> None:
    assert not CpuPrefillAttention.supports(SHAPE.kv_shape(torch.float32))
    assert not CpuPrefillAttention.supports(replace(SHAPE, head_dim=40).kv_shape(BF16))
