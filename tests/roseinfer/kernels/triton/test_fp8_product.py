"""Products of few rows in 8-bit floats against the reference."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.kernels.triton.fp8_product import Fp8Tile, fp8_product
from roseinfer.models.fp8 import Fp8Linear, quantize

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@settings(max_examples=10)
@given(st.integers(0, 1000), st.integers(1, 16))
def test_products_are_those_of_the_reference(seed: int, rows: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    linear = Fp8Linear(torch.randn(64, 1024, generator=draw), None)
    x, tile = quantize(torch.randn(rows, 1024, generator=draw)), Fp8Tile(16, 32, inputs=256, stages=4)
    assert tile.takes(x.values, linear.weight)
    values, scales, weight, outputs = (
        tensor.to(DEVICE) for tensor in (x.values, x.scales, linear.weight, linear.scales)
    )
    got = fp8_product(values, scales, weight, outputs, tile, torch.float32)
    torch.testing.assert_close(got.cpu(), linear.times(x, torch.float32), rtol=1e-4, atol=1e-4)


def test_tiles_that_do_not_divide_a_product_leave_it() -> None:
    tile = Fp8Tile(16, 32, inputs=256, stages=4)
    assert not tile.takes(torch.zeros(17, 1024), torch.zeros(64, 1024))
    assert not tile.takes(torch.zeros(3, 1024), torch.zeros(60, 1024))
    assert not tile.takes(torch.zeros(3, 1100), torch.zeros(64, 1100))
