"""Attention of prompts beside requests that decode, in C++ and in PyTorch."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.attention.cpu_prefill import CpuPrefillAttention
from tests.roseinfer.attention.cases import SHAPE, Case, cases, check
from tests.roseinfer.conftest import needs_bf16_products

BF16 = torch.bfloat16
#: Weights and result are rounded to 8 bits.
TOLERANCE = 2**-6
PROMPTS = cases(
    prompts=st.lists(st.tuples(st.just(0) | st.integers(1, 130), st.integers(1, 60)), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 40), max_size=3),
    dtype=st.just(BF16),
)


@needs_bf16_products
@settings(max_examples=100)
@given(PROMPTS)
def test_kernel(case: Case) -> None:
    assert isinstance(check(case, TOLERANCE), CpuPrefillAttention)


@settings(max_examples=20)
@given(PROMPTS)
def test_pytorch(case: Case) -> None:
    assert not isinstance(check(case, TOLERANCE, prefill_backend="sdpa"), CpuPrefillAttention)


@needs_bf16_products
def test_a_long_prompt_after_a_long_context() -> None:
    check(Case([(2100, 1000)], [], 2, 2, 64, 16, BF16, 1), TOLERANCE)


@needs_bf16_products
def test_a_nan_stays_a_nan_and_spoils_no_other_query() -> None:
    check(Case([(40, 30)], [7], 2, 2, 64, 16, BF16, 1), TOLERANCE, first_query=torch.nan)


def test_what_the_kernel_does_not_do() -> None:
    assert not CpuPrefillAttention.supports(SHAPE.kv_shape(torch.float32))
    assert not CpuPrefillAttention.supports(replace(SHAPE, head_dim=40).kv_shape(BF16))
