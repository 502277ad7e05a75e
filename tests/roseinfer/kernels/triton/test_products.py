"""Products of weights with few rows, against PyTorch's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from roseinfer.kernels.triton import gated, head, pipelined, products, resident
from roseinfer.kernels.triton.gated import GatedTile, gated_product
from roseinfer.kernels.triton.pipelined import PipelinedTile
from roseinfer.models.ops import Ops
from tests.roseinfer.kernels.triton.conftest import close, draw, examples, seeds

OPS = Ops()


@examples
@given(
    seeds,
    st.integers(1, resident.MAX_ROWS),
    st.sampled_from([96, 300]),
    st.integers(1, 70),
    st.integers(1, 4),
    st.booleans(),
)
def test_products(seed: int, rows: int, inputs: int, outputs: int, splits: int, gelu: bool) -> None:
    x, weight, bias = draw(seed, rows, inputs), draw(seed + 1, outputs, inputs) / 30, draw(seed + 2, outputs)
    tile = resident.ResidentTile(outputs=16, splits=splits, inputs=32)
    expected = F.linear(x, weight)
    close(products.product_in_parts(x, weight, tile).sum(0), expected)
    expected = F.gelu(expected + bias, approximate="tanh") if gelu else expected + bias
    close(
        products.product(x, weight, bias, resident.ResidentTile(outputs=16, inputs=32), gelu=gelu), expected
    )


@examples
@given(seeds, st.integers(1, 80), st.sampled_from([1, 2, 4]), st.sampled_from([16, 64]), st.booleans())
def test_pipelined_products(seed: int, rows: int, splits: int, height: int, gelu: bool) -> None:
    x, weight, bias = draw(seed, rows, 128), draw(seed + 1, 48, 128) / 30, draw(seed + 2, 48)
    expected = F.linear(x, weight)
    tile = PipelinedTile(height, 16, splits, inputs=32, stages=2)
    close(products.product_in_parts(x, weight, tile).sum(0), expected)
    expected = F.gelu(expected + bias, approximate="tanh") if gelu else expected + bias
    whole = PipelinedTile(height, 16, inputs=32, stages=2)
    close(products.product(x, weight, bias, whole, gelu=gelu), expected)


def test_tiles_that_do_not_divide_a_product_leave_it() -> None:
    x, weight = draw(0, 40, 768).half(), draw(1, 2304, 768).half()
    assert PipelinedTile(64, 64, splits=4).takes(x, weight)
    assert not PipelinedTile(64, 64, splits=5).takes(x, weight)
    assert not PipelinedTile(64, 5).takes(x, weight)
    assert not PipelinedTile(64, 64).takes(x.float(), weight.float())


def test_tiles_that_do_not_fit_shared_memory_leave_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes are those for which Triton compiles; above the limit it raises OutOfResources."""

    def taken(size: int, width: int) -> list[bool]:
        for module in (gated, head, pipelined, resident):
            monkeypatch.setattr(module, "shared_memory", lambda device: size)
        x, weight = torch.zeros(32, width).half(), torch.zeros(2 * width, width).half()
        tiles = PipelinedTile(128, 32), gated.GatedTile(128, 64), resident.ResidentTile()
        return [*(tile.takes(x, weight) for tile in tiles), head.takes(x[:4])]

    assert taken(232_448, 768) == [True, True, True, True]
    assert taken(232_448, 1600) == [True, True, True, True]
    assert taken(232_448, 3072) == [True, True, False, False]
    assert taken(166_912, 1600) == [True, True, False, True]
    assert taken(101_376, 768) == [False, True, True, True]
    assert taken(101_376, 1280) == [False, True, False, False]


@examples
@given(seeds, st.integers(1, 40))
def test_gated_product(seed: int, rows: int) -> None:
    x, weight = draw(seed, rows, 64), draw(seed + 1, 2 * 48, 64) / 8
    close(gated_product(x, weight, GatedTile(16, 16, inputs=32, stages=2)), OPS.swiglu(x @ weight.t()))


def test_tiles_that_do_not_divide_a_gated_product_leave_it() -> None:
    x, weight = draw(0, 20, 1024).half(), draw(1, 6144, 1024).half()
    assert GatedTile(64, 64).takes(x, weight)
    assert not GatedTile(64, 5).takes(x, weight) and not GatedTile(64, 64).takes(x.float(), weight.float())
