"""Products of weights with few rows, the LM head and the likeliest token, against PyTorch's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from roseinfer.kernels.triton import argmax, gated, head, pipelined, products, resident
from roseinfer.kernels.triton.fp8_product import Fp8Tile, fp8_product
from roseinfer.kernels.triton.gated import GatedTile, gated_product
from roseinfer.kernels.triton.pipelined import PipelinedTile
from roseinfer.models.fp8 import Fp8Linear, quantize
from roseinfer.models.ops import Ops
from tests.roseinfer.kernels.triton.conftest import DEVICE, close, draw, examples, seeds

OPS = Ops()


def check_product(seed: int, shape: tuple[int, int, int], tile: Any, gelu: bool) -> None:
    """Check a product of rows, inputs and outputs, in the tile's parts, and whole with what follows."""
    rows, inputs, outputs = shape
    x, weight, bias = draw(seed, rows, inputs), draw(seed + 1, outputs, inputs) / 30, draw(seed + 2, outputs)
    expected = F.linear(x, weight)
    close(products.product_in_parts(x, weight, tile).sum(0), expected)
    expected = F.gelu(expected + bias, approximate="tanh") if gelu else expected + bias
    close(products.product(x, weight, bias, replace(tile, splits=1), gelu=gelu), expected)


SHAPES = st.tuples(st.integers(1, resident.MAX_ROWS), st.sampled_from([96, 300]), st.integers(1, 70))


@examples
@given(seeds, SHAPES, st.integers(1, 4), st.booleans())
def test_products(seed: int, shape: tuple[int, int, int], splits: int, gelu: bool) -> None:
    check_product(seed, shape, resident.ResidentTile(outputs=16, splits=splits, inputs=32), gelu)


@examples
@given(seeds, st.integers(1, 80), st.sampled_from([1, 2, 4]), st.sampled_from([16, 64]), st.booleans())
def test_pipelined_products(seed: int, rows: int, splits: int, height: int, gelu: bool) -> None:
    check_product(seed, (rows, 128, 48), PipelinedTile(height, 16, splits, inputs=32, stages=2), gelu)


def test_tiles_that_do_not_divide_a_product_leave_it() -> None:
    x, weight = draw(0, 40, 768).half(), draw(1, 2304, 768).half()
    assert PipelinedTile(64, 64, splits=4).takes(x, weight)
    assert not PipelinedTile(64, 64, splits=5).takes(x, weight)
    assert not PipelinedTile(64, 5).takes(x, weight)
    assert GatedTile(64, 64).takes(x, weight) and not GatedTile(64, 5).takes(x, weight)
    for kind in (PipelinedTile, GatedTile):
        assert not kind(64, 64).takes(x.float(), weight.float())
    tile = Fp8Tile(16, 32, inputs=256, stages=4)
    for rows, outputs, inputs in ((17, 64, 1024), (3, 60, 1024), (3, 64, 1100)):
        assert not tile.takes(torch.zeros(rows, inputs), torch.zeros(outputs, inputs))


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


@examples
@given(seeds, st.integers(1, head.MAX_ROWS), st.integers(1, 150))
def test_head_and_choice(seed: int, rows: int, vocab: int) -> None:
    x, weight = draw(seed, rows, 96), draw(seed + 1, vocab, 96)
    logits, best, token = head.head(x, weight)
    close(logits, F.linear(x, weight))
    last, out = torch.zeros(2, rows + 1, dtype=torch.int64, device=DEVICE)
    running = torch.arange(1, rows + 1, dtype=torch.int32, device=DEVICE)
    argmax.choose(best, token, running, last, out[:rows])
    assert out[:rows].tolist() == last[1:].tolist() == logits.argmax(-1).tolist()
    assert last[0] == 0


def likeliest(logits: Tensor, rows: list[int]) -> list[int]:
    """Return the first likeliest token of each of logits `[n, vocab]`, which its row has last then."""
    last, out = torch.zeros(2, len(logits), dtype=torch.int64, device=DEVICE)
    argmax.argmax(logits, torch.tensor(rows, dtype=torch.int32, device=DEVICE), last, out)
    assert last[rows].tolist() == out.tolist()
    return out.tolist()


@examples
@given(st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4))
def test_argmax_takes_the_first_of_equals(values: list[list[int]]) -> None:
    logits = torch.tensor(values, dtype=torch.float32, device=DEVICE)
    assert likeliest(logits, [*range(len(values))]) == [row.index(max(row)) for row in values]


def test_argmax_over_several_parts_and_of_what_is_no_number() -> None:
    logits = draw(0, 3, 5003)
    assert likeliest(logits, [1, 0, 2]) == logits.argmax(-1).tolist()
    logits[0], logits[1, 4000:] = math.nan, math.nan
    assert likeliest(logits, [0, 1, 2]) == [0, 4000, logits[2].argmax().item()]
