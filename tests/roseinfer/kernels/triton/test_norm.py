"""Norms and SwiGLU against PyTorch's operators."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from roseinfer.kernels.triton import norm
from roseinfer.kernels.triton.rms_norm import add_rms_norm_, rms_norm
from roseinfer.kernels.triton.swiglu import swiglu
from roseinfer.models.ops import Ops
from tests.roseinfer.kernels.triton.conftest import EPS, close, draw, examples, seeds

OPS = Ops()


@examples
@given(seeds, st.integers(1, 5), st.sampled_from([96, 128, 200]), st.integers(1, 3))
def test_norms(seed: int, rows: int, width: int, parts: int) -> None:
    x, branch = draw(seed, rows, width), draw(seed + 1, parts, rows, width)
    bias, gain, shift = draw(seed + 2, 3, width)
    close(norm.norm(x, gain, shift, EPS), F.layer_norm(x, (width,), gain, shift, EPS))
    summed = x + branch.sum(0) + bias
    close(norm.add_norm_(x, branch, bias, gain, shift, EPS), F.layer_norm(summed, (width,), gain, shift, EPS))
    close(x, summed)


@examples
@given(seeds, st.integers(1, 5), st.sampled_from([96, 128, 1200]), st.integers(1, 3))
def test_norms_and_swiglu(seed: int, rows: int, width: int, parts: int) -> None:
    x, branch, gain = draw(seed, rows, width), draw(seed + 1, parts, rows, width), draw(seed + 2, width)
    close(rms_norm(x, gain, EPS), OPS.rms_norm(x, gain, EPS))
    summed = x + branch.sum(0)
    close(add_rms_norm_(x, branch, gain, EPS), OPS.rms_norm(summed, gain, EPS))
    close(x, summed)
    close(swiglu(x), OPS.swiglu(x))
