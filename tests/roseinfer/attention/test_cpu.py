"""Attention on a CPU against its definition in float64: C++ kernels, and PyTorch where they do not run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.attention.backends import make_attention
from roseinfer.attention.base import Attention
from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.attention.cpu_prefill import CpuPrefillAttention
from roseinfer.config import PrefillBackend
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.config import parse
from tests.roseinfer.conftest import lay_out, make_batch, needs_bf16_products, reference_attention

SHAPE = parse({"model_type": "gpt2"})
FP32, BF16 = torch.float32, torch.bfloat16
#: Rounding of the inputs and, for bf16, of the output to 8 bits; with prompts, of the weights too.
DECODES, PROMPTS = {FP32: 2e-6, BF16: 2**-7}, 2**-6


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
    case: Case, tolerance: float | None = None, first_query: float | None = None, **backends: Any
) -> Attention:
    """Check a step's result, relative to the largest value, and what it stores. Returns the attention."""
    tolerance = tolerance or (PROMPTS if case.prompts else DECODES[case.dtype])
    generator = torch.Generator().manual_seed(case.seed)
    heads = (case.kv_heads * case.groups, case.kv_heads, case.kv_heads)
    config = replace(SHAPE, layers=2, heads=heads[0], kv_heads=case.kv_heads, head_dim=case.head_dim)
    parts = [*case.prompts, *((length - 1, 1) for length in case.lengths)]
    contexts, counts = zip(*parts, strict=True)
    blocks, table, slots = lay_out(
        [sum(part) for part in parts], case.block_size, np.random.default_rng(case.seed), spare=3
    )
    pool = KVPool(config.kv_shape(case.dtype), blocks, case.block_size, torch.device("cpu"))
    attention = make_attention(pool, **({"cpu_kernels": True} | backends)).attention

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


@pytest.mark.parametrize("kernel", [True, False])
@settings(max_examples=30)
@given(
    cases(
        prompts=st.just([]),
        lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
        dtype=st.sampled_from([FP32, BF16]),
    )
)
def test_decode(kernel: bool, case: Case) -> None:
    assert isinstance(check(case, cpu_kernels=kernel), CpuPagedAttention) == kernel


@pytest.mark.parametrize("backend", [pytest.param("auto", marks=needs_bf16_products), "sdpa"])
@settings(max_examples=30)
@given(
    cases(
        prompts=st.lists(
            st.tuples(st.just(0) | st.integers(1, 130), st.integers(1, 60)), min_size=1, max_size=4
        ),
        lengths=st.lists(st.integers(1, 40), max_size=3),
        dtype=st.just(BF16),
    )
)
def test_prompts_beside_requests_that_decode(backend: PrefillBackend, case: Case) -> None:
    attention = check(case, prefill_backend=backend)
    assert isinstance(attention, CpuPrefillAttention) == (backend == "auto")


step = partial(Case, kv_heads=2, groups=2, head_dim=64, block_size=16, seed=1)


def test_long_contexts() -> None:
    """Sums over thousands of tokens keep their precision."""
    check(step([], [4099, 1, 2500], dtype=FP32), 1e-5)


@needs_bf16_products
def test_a_long_prompt_after_a_long_context() -> None:
    check(step([(2100, 1000)], [], dtype=BF16))


@pytest.mark.parametrize(
    "case",
    [
        *(step([], [70, 9], dtype=dtype) for dtype in DECODES),
        pytest.param(step([(40, 30)], [7], dtype=BF16), marks=needs_bf16_products),
    ],
)
def test_a_nan_stays_a_nan_and_spoils_no_other_query(case: Case) -> None:
    check(case, first_query=torch.nan)


def test_heads_that_do_not_fill_vectors_go_through_pytorch() -> None:
    odd = replace(SHAPE, head_dim=40)
    assert not CpuPagedAttention.supports(odd.kv_shape(FP32))
    assert not CpuPagedAttention.supports(SHAPE.kv_shape(torch.float16))
    assert not CpuPrefillAttention.supports(odd.kv_shape(BF16))
    assert not CpuPrefillAttention.supports(SHAPE.kv_shape(FP32))
    assert not isinstance(check(step([], [3, 9], head_dim=40, dtype=FP32), 1e-5), CpuPagedAttention)
