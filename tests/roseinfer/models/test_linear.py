"""Matrix products on a CPU in C++, oneDNN and 8-bit floats, against exact ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional as F

from roseinfer.config import ConfigError
from roseinfer.engine.core import Engine
from roseinfer.models.config import parse
from roseinfer.models.cpu import CpuLinear
from roseinfer.models.fp8 import Fp8Linear, quantize
from roseinfer.models.linear import Linear, OneDnnLinear, WidenedLinear
from roseinfer.models.load import linear_kind, load
from roseinfer.models.ops import Ops
from tests.roseinfer.conftest import config_of, on_models

CPU = torch.device("cpu")
SHAPE = parse({"model_type": "gpt2"})

needs_the_kernel = pytest.mark.skipif(
    not CpuLinear.supports(SHAPE, CPU, torch.bfloat16), reason="needs a processor with AVX-512"
)
#: The result, its inputs being the same, is rounded to 8 bits; float32 sums add little to that.
TOLERANCE = 2**-8 + 1e-4


@dataclass(frozen=True)
class Case:
    rows: int
    inputs: int
    outputs: int
    bias: bool
    seed: int


CASES = st.builds(
    Case,
    rows=st.integers(1, 40) | st.integers(41, 600),
    inputs=st.integers(1, 300).map(lambda half: 2 * half),
    outputs=st.integers(1, 400),
    bias=st.booleans(),
    seed=st.integers(0, 999),
)


#: More rows and inputs than a cache holds.
LARGE = Case(rows=300, inputs=4_210, outputs=70, bias=True, seed=0)


def tensors(case: Case) -> tuple[torch.Tensor, ...]:
    """x, residual, weight, bias."""
    torch.manual_seed(case.seed)
    shapes = (case.rows, case.inputs), (case.rows, case.outputs), (case.outputs, case.inputs), (case.outputs,)
    x, residual, weight, bias = (torch.randn(shape).bfloat16() for shape in shapes)
    return x, residual, weight, bias


def close(result: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> bool:
    return bool(((result.double() - expected).abs() <= TOLERANCE * scale).all())


@needs_the_kernel
@given(CASES)
@example(LARGE)
def test_a_product_and_what_follows_it(case: Case) -> None:
    x, residual, weight, bias = tensors(case)
    linear = CpuLinear(weight, bias if case.bias else None)
    summed = F.linear(x.double(), weight.double(), bias.double() if case.bias else None)
    size = summed.abs() + 0.02 * case.inputs**0.5
    assert close(linear(x), summed, size)
    assert close(linear.add(x, residual), residual.double() + summed, size + residual.double().abs())
    assert close(linear.gelu(x), F.gelu(summed, approximate="tanh"), size)


@needs_the_kernel
@given(CASES)
@example(LARGE)
def test_a_row_does_not_depend_on_those_beside_it(case: Case) -> None:
    x, residual, weight, bias = tensors(case)
    linear = CpuLinear(weight, bias)
    together = linear.add(x, residual)
    alone = [linear.add(x[i : i + 1], residual[i : i + 1]) for i in range(case.rows)]
    assert torch.equal(together, torch.cat(alone))


@needs_the_kernel
def test_gelu_far_from_zero() -> None:
    x = torch.tensor([[-1e4, -90.0, -9.0, 0.0, 9.0, 90.0, 1e4, 1.0]]).bfloat16()
    result = CpuLinear(torch.eye(8).bfloat16(), None).gelu(x)
    torch.testing.assert_close(result, F.gelu(x, approximate="tanh"), rtol=0, atol=1e-26)


@needs_the_kernel
def test_rows_that_lie_apart() -> None:
    case = Case(5, 64, 96, False, 0)
    x, residual, weight, _ = tensors(case)
    linear = CpuLinear(weight, None)
    apart = x.repeat(1, 2)[:, :64], residual.repeat(1, 2)[:, :96]
    assert torch.equal(linear.add(*apart), linear.add(x, residual))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_onednn(dtype: torch.dtype) -> None:
    if not OneDnnLinear.supports(CPU, dtype):
        pytest.skip("needs oneDNN with this dtype")
    x, residual, weight, bias = (part.to(dtype) for part in tensors(Case(7, 64, 80, True, 3)))
    packed, plain = OneDnnLinear(weight, bias), Linear(weight, bias)
    for result, expected in (
        (packed(x), plain(x)),
        (packed.gelu(x), plain.gelu(x)),
        (packed.add(x, residual), plain.add(x, residual)),
    ):
        torch.testing.assert_close(
            result, expected, rtol=0.02, atol=0.05 if dtype == torch.bfloat16 else 1e-4
        )


@given(CASES)
def test_a_product_in_float32(case: Case) -> None:
    x, _, weight, bias = tensors(case)
    linear = WidenedLinear(weight, bias if case.bias else None)
    summed = F.linear(x.double(), weight.double(), bias.double() if case.bias else None)
    result = linear(x)
    assert result.dtype == torch.bfloat16
    assert close(result, summed, summed.abs() + 0.02 * case.inputs**0.5)


@pytest.mark.parametrize(
    "has_bf16, dtype, packed, expected",
    [
        (True, torch.bfloat16, True, OneDnnLinear),
        (False, torch.bfloat16, True, WidenedLinear),
        (False, torch.bfloat16, False, Linear),
        (False, torch.float16, True, Linear),
    ],
)
def test_which_layer_a_cpu_has(monkeypatch, has_bf16, dtype, packed, expected):
    monkeypatch.setattr(OneDnnLinear, "supports", staticmethod(lambda *_: has_bf16))
    assert linear_kind(SHAPE, CPU, dtype, packed=packed, kernel=False) is expected


def test_what_the_kernel_does_not_do() -> None:
    assert not CpuLinear.supports(SHAPE, CPU, torch.float32)
    assert not CpuLinear.supports(SHAPE, torch.device("cuda"), torch.bfloat16)
    assert not CpuLinear.supports(replace(SHAPE, ffn_width=3071), CPU, torch.bfloat16)


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


@on_models(["llama"])
def test_an_engine_with_8_bit_floats_says_so_and_keeps_its_head(folder: Path) -> None:
    engine = Engine(config_of(folder, quantization="fp8"))
    assert engine.info.model.linear == "fp8" and engine.info.settings()["quantization"] == "fp8"
    model = load(str(folder), CPU, torch.float32, quantization="fp8")
    assert type(model._layers[0].out) is Fp8Linear and type(model._head) is not Fp8Linear  # type: ignore[attr-defined]


def test_other_families_refuse() -> None:
    with pytest.raises(ConfigError, match="Llama family"):
        load("random:gpt2-tiny", CPU, torch.float32, quantization="fp8")
