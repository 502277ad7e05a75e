"""Products in 8-bit floats: their rounding, the kernels between them, and what they cost in quality."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.config import ConfigError
from roseinfer.engine.core import Engine
from roseinfer.models.fp8 import Fp8Linear, quantize
from roseinfer.models.linear import Linear
from roseinfer.models.load import load
from roseinfer.models.ops import Ops
from tests.roseinfer.conftest import LLAMAS, config_of, make_llama

CPU = torch.device("cpu")


@given(st.integers(0, 1000), st.integers(1, 5), st.sampled_from([1e-20, 1.0, 1e4]))
def test_rows_are_rounded_to_three_bits_of_their_own_scale(seed: int, rows: int, size: float) -> None:
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(seed)) * size
    x[0, 3] *= 50  # one row's outlier is no other's
    got = quantize(x)
    back = got.values.float() * got.scales
    assert back.isfinite().all()
    largest = x.abs().amax(-1, keepdim=True)
    # Half a step of a number's own binade, or of the smallest that E4M3 has.
    bound = torch.maximum(x.abs() / 16, largest / 448 * 2**-10).clamp_(min=1e-12) * 1.0001
    assert ((back - x).abs() <= bound).all()


def test_a_row_of_zeros_stays_zeros() -> None:
    got = quantize(torch.zeros(2, 16))
    assert (got.values.float() * got.scales == 0).all()


def test_products_are_within_the_rounding() -> None:
    torch.manual_seed(0)
    weight, bias, x, residual = torch.randn(48, 64), torch.randn(48), torch.randn(7, 64), torch.randn(7, 48)
    exact, rounded = Linear(weight, bias), Fp8Linear(weight, bias)
    assert (rounded(x) - exact(x)).norm() < 0.05 * exact(x).norm()
    assert not torch.equal(rounded(x), exact(x))
    torch.testing.assert_close(rounded.add(x, residual), residual + rounded(x))
    assert torch.equal(rounded(x)[3:4], rounded(x[3:4]))  # a row does not depend on the others


def test_kernels_between_products() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from roseinfer.kernels.triton.fp8 import norm_rows_, round_rows, swiglu_rows

    torch.manual_seed(1)
    ops = Ops()
    x, branch, gain = torch.randn(5, 96), torch.randn(5, 96), torch.randn(96)
    summed = x + branch
    cases = [
        (round_rows(x), x.clone()),
        (swiglu_rows(x), ops.swiglu(x)),
        (norm_rows_(x.clone(), None, gain, 1e-5), ops.rms_norm(x, gain, 1e-5)),
        (norm_rows_(x, branch, gain, 1e-5), ops.rms_norm(summed, gain, 1e-5)),
    ]
    torch.testing.assert_close(x, summed)
    for (values, scales), expected in cases:
        rows = quantize(expected)
        torch.testing.assert_close(scales, rows.scales)
        # A sum in another order may round to a neighbour; Triton's interpreter loses a carry.
        off = (values.float() * scales - expected).norm() / expected.norm()
        assert off < (0.05 if values.is_cuda else 0.15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("qwen3"), next(iter(LLAMAS)))


def test_an_engine_with_8_bit_floats_says_so_and_keeps_its_head(folder: Path) -> None:
    engine = Engine(config_of(folder, quantization="fp8"))
    assert engine.info.model.linear == "fp8" and engine.info.settings()["quantization"] == "fp8"
    model = load(str(folder), CPU, torch.float32, quantization="fp8")
    assert type(model._layers[0].out) is Fp8Linear and type(model._head) is not Fp8Linear  # type: ignore[attr-defined]


def test_other_families_refuse() -> None:
    with pytest.raises(ConfigError, match="Llama family"):
        load("random:gpt2-tiny", CPU, torch.float32, quantization="fp8")
