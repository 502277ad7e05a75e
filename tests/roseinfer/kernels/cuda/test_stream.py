"""Tilings of GEMMs with few rows: named shapes fit a multiprocessor, others are left to cuBLAS."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.kernels.cuda import experts
from roseinfer.kernels.cuda.stream import FEW_ROWS, MAX_ROWS, bucket, plan
from rosemodels import llama

#: Of an H200: multiprocessors, and bytes of shared memory that a block may have.
BLOCKS, SHARED = 132, 227 * 1024
#: Bytes of shared memory that a kernel may declare.
STATIC = 48 * 1024
SHAPES = [name for name in llama.SHAPES if "tiny" not in name and name != "smollm2-135m"]
#: Those of which each GEMM has a tiling for up to 16 rows, the others for up to 8.
EVERY_ROW = ("qwen3-0.6b", "qwen3-8b", "llama-3.1-8b")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", range(1, MAX_ROWS + 1))
def test_named_shapes_fit(name: str, rows: int) -> None:
    shape = llama.SHAPES[name]
    dim, width, ffn = shape.head_dim, shape.width, shape.ffn_width
    products = [
        (width, (shape.heads + 2 * shape.kv_heads) * dim, False),
        (shape.heads * dim, width, False),
        *([] if shape.experts else [(width, ffn, True), (ffn, width, False)]),
    ]
    for inputs, outputs, gated in products:
        tiling = plan(inputs, outputs, gated, BLOCKS, 1 << (rows - 1).bit_length())
        if tiling is None:
            assert rows > FEW_ROWS and name not in EVERY_ROW
            continue
        assert tiling.depth >= 2
        assert inputs % tiling.chunk == 0 and tiling.chunk % (32 * tiling.warps) == 0
        assert outputs % (8 * tiling.tiles // (1 + gated)) == 0 and tiling.tiles <= 4
        assert tiling.holds_x or not gated  # what is normalised is held
        height = FEW_ROWS if rows <= FEW_ROWS else MAX_ROWS
        sums = 2 * tiling.warps * height * (8 * tiling.tiles + 8) * 4
        assert sums <= STATIC
        kept = 1 if tiling.registers else rows * tiling.holds_x  # rows of x, or the norm's gains
        assert tiling.ring + kept * inputs * 2 + sums + 512 <= SHARED
        if tiling.registers:
            assert tiling.holds_x and height == MAX_ROWS
            assert height * inputs * 2 <= 512 * 32 * tiling.warps


@pytest.mark.parametrize("rows", range(1, MAX_ROWS + 1))
def test_experts_fit(rows: int) -> None:
    """With the sums and the choice of experts, which lie beside the ring buffer."""
    shape = llama.SHAPES["qwen3-30b-a3b"]
    fitting = experts.plans(shape.width, shape.ffn_width, shape.experts, bucket(rows))
    height = FEW_ROWS if rows <= FEW_ROWS else MAX_ROWS
    beside = height * (2 * 8 * 24 + shape.experts + 8 * 2) * 4 + 2 * 4 * shape.experts
    assert beside <= STATIC and fitting
    for tiling in fitting:
        assert shape.width % tiling.chunk == shape.ffn_width % tiling.down_chunk == 0 and tiling.depth >= 2
        assert tiling.chunk % 256 == tiling.down_chunk % 256 == 0
        assert tiling.ring + rows * shape.width * 2 + beside + 512 <= SHARED
    assert not experts.plans(576, 768, 128, 8) and not experts.plans(2048, 768, 60, 8)


def test_shapes_that_do_not_divide_are_left() -> None:
    assert plan(100, 1024, False, BLOCKS) is None
    assert plan(1024, 1003, False, BLOCKS) is None
    assert plan(1024, 8, True, BLOCKS, FEW_ROWS) is not None and plan(1024, 4, True, BLOCKS) is None


@pytest.mark.parametrize("size", [1, 2])
def test_bfloat16_stays_in_registers_where_it_fits(size: int) -> None:
    tiling, few = (plan(4096, 6144, True, BLOCKS, rows, size) for rows in (MAX_ROWS, FEW_ROWS))
    assert tiling is not None and tiling.holds_x and tiling.registers == (size == 2)
    assert few is not None and few.holds_x and not few.registers
    far = plan(12288, 4096, False, BLOCKS)
    assert far is not None and not far.holds_x and not far.registers
