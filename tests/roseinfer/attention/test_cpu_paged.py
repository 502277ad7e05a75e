"""The C++ decode kernel, and PyTorch's operators where it does not run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.attention.cpu_paged import CpuPagedAttention
from tests.roseinfer.attention.cases import SHAPE, Case, cases, check

#: Rounding of the inputs and, for bf16, of the output to 8 bits.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
DECODES = cases(
    prompts=st.just([]),
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    dtype=st.sampled_from(list(TOLERANCE)),
)


@settings(max_examples=100)
@given(DECODES)
def test_decode_kernel(case: Case) -> None:
    assert isinstance(check(case, TOLERANCE[case.dtype]), CpuPagedAttention)


@settings(max_examples=20)
@given(DECODES)
def test_decode_in_pytorch(case: Case) -> None:
    assert not isinstance(check(case, TOLERANCE[case.dtype], cpu_kernels=False), CpuPagedAttention)


def test_long_contexts() -> None:
    """Sums over thousands of tokens keep their precision."""
    check(Case([], [4099, 1, 2500], 2, 2, 64, 16, torch.float32, seed=1), 1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_nan_stays_a_nan_and_spoils_no_other_request(dtype: torch.dtype) -> None:
    check(Case([], [70, 9], 2, 2, 64, 16, dtype, seed=3), 2**-7, first_query=torch.nan)


def test_heads_that_do_not_fill_vectors_go_through_pytorch() -> None:
    assert not CpuPagedAttention.supports(replace(SHAPE, head_dim=40).kv_shape(torch.float32))
    assert not CpuPagedAttention.supports(SHAPE.kv_shape(torch.float16))
    attention = check(Case([], [3, 9], 2, 1, 40, 4, torch.float32, seed=2), 1e-5)
    assert not isinstance(attention, CpuPagedAttention)
