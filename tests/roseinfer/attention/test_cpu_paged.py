"""The C++ decode kernel against attention written out in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.attention.backends import make_attention
from roseinfer.attention.base import Attention
from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.batch import Batch
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.config import ModelConfig, parse
from tests.roseinfer.conftest import lay_out

GPT2 = {"model_type": "gpt2"}

#: Relative to the largest value: rounding of the inputs and, for bf16, of the output to 8 bits.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}


@dataclass(frozen=True)
class Case:
    """`lengths` holds the tokens of each request, the new one included; heads = groups · kv_heads."""

    lengths: list[int]
    kv_heads: int
    groups: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    fused: bool  # q, k and v are parts of one tensor
    seed: int


CASES = st.builds(
    Case,
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    kv_heads=st.integers(1, 5),
    groups=st.integers(1, 4),
    head_dim=st.sampled_from([16, 32, 48, 64, 80, 128]),
    block_size=st.integers(1, 17),
    dtype=st.sampled_from(list(TOLERANCE)),
    fused=st.booleans(),
    seed=st.integers(0, 999),
)


def config_of(case: Case) -> ModelConfig:
    return replace(
        parse(GPT2), layers=2, heads=case.kv_heads * case.groups,
        kv_heads=case.kv_heads, head_dim=case.head_dim,
    )  # fmt: skip


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q `[heads, dim]` to k and v `[length, kv heads, dim]`, float64."""
    k, v = (x.double().repeat_interleave(len(q) // x.shape[1], dim=1) for x in (k, v))
    weights = torch.softmax(torch.einsum("hd,lhd->hl", q.double(), k) * q.shape[1] ** -0.5, -1)
    return torch.einsum("hl,lhd->hd", weights, v).flatten()


def run(
    case: Case, *, cpu_kernels: bool, first_query: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, Attention]:
    """The attention's result for the new tokens, the expected one, and the attention."""
    rng = np.random.default_rng(case.seed)
    generator = torch.Generator().manual_seed(case.seed)
    config = config_of(case)
    num_blocks, tables, slots = lay_out(case.lengths, case.block_size, rng, spare=3)
    pool = KVPool(config.kv_shape(case.dtype), num_blocks, case.block_size, torch.device("cpu"))
    attention = make_attention(pool, cpu_kernels=cpu_kernels).attention

    heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
    rows = torch.randn(len(case.lengths), heads + 2 * kv_heads, dim, generator=generator).to(case.dtype)
    parts = rows.split([heads, kv_heads, kv_heads], dim=1)
    q, k, v = parts if case.fused else (part.contiguous() for part in parts)
    if first_query is not None:
        q[0] = first_query
    keys, values = pool.layer(1)
    keys.normal_(generator=generator)
    values.normal_(generator=generator)

    length, order = np.array(case.lengths), np.arange(len(case.lengths))
    attention.begin(
        Batch(
            tokens=np.zeros_like(length), positions=length - 1, cache_slots=np.array([s[-1] for s in slots]),
            segments=(), decode_lengths=length, last_rows=order, requests=order, block_table=tables,
            block_size=case.block_size,
        )
    )  # fmt: skip
    out = attention.attend(1, q, k, v)
    wanted = torch.stack(
        [expected(q[i], keys[torch.from_numpy(s)], values[torch.from_numpy(s)]) for i, s in enumerate(slots)]
    )
    for i, slot in enumerate(slots):
        assert torch.equal(keys[slot[-1]], k[i]) and torch.equal(values[slot[-1]], v[i]), "stored as given"
    return out.double(), wanted, attention


@settings(max_examples=150)
@given(case=CASES)
def test_decode_kernel(case: Case) -> None:
    out, wanted, attention = run(case, cpu_kernels=True)
    assert isinstance(attention, CpuPagedAttention)
    assert (out - wanted).abs().max() <= TOLERANCE[case.dtype] * wanted.abs().max()


@settings(max_examples=30)
@given(case=CASES)
def test_decode_in_pytorch(case: Case) -> None:
    out, wanted, attention = run(case, cpu_kernels=False)
    assert not isinstance(attention, CpuPagedAttention)
    assert (out - wanted).abs().max() <= TOLERANCE[case.dtype] * wanted.abs().max()


def test_long_contexts() -> None:
    """Sums over thousands of tokens keep their precision."""
    case = Case([4099, 1, 2500], 2, 2, 64, 16, torch.float32, fused=True, seed=1)
    out, wanted, _ = run(case, cpu_kernels=True)
    assert (out - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_nan_stays_a_nan_and_spoils_no_other_request(dtype: torch.dtype) -> None:
    case = Case([70, 9], 2, 2, 64, 16, dtype, fused=True, seed=3)
    out, wanted, _ = run(case, cpu_kernels=True, first_query=torch.nan)
    assert torch.equal(out.isnan(), wanted.isnan())


def test_heads_that_do_not_fill_vectors_go_through_pytorch() -> None:
    assert not CpuPagedAttention.supports(replace(parse(GPT2), head_dim=40).kv_shape(torch.float32))
    assert not CpuPagedAttention.supports(parse(GPT2).kv_shape(torch.float16))
    out, wanted, attention = run(
        Case([3, 9], 2, 1, 40, 4, torch.float32, fused=True, seed=2), cpu_kernels=True
    )
    assert not isinstance(attention, CpuPagedAttention)
    assert torch.allclose(out, wanted, atol=1e-5)
