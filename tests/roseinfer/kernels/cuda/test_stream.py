"""Tilings of GEMMs with few rows: named shapes fit a multiprocessor, others are left to cuBLAS."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.kernels.cuda.stream import FEW_ROWS, MAX_ROWS, plan
from rosemodels import llama

#: Of an H200: multiprocessors, and bytes of shared memory that a block may have.
BLOCKS, SHARED = 132, 227 * 1024
#: Bytes of shared memory that a kernel may declare.
STATIC = 48 * 1024
SHAPES = [name for name in llama.SHAPES if name not in ("llama-tiny", "smollm2-135m")]
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
        (width, ffn, True),
        (ffn, width, False),
    ]
    for inputs, outputs, gated in products:
        how = plan(inputs, outputs, gated, BLOCKS, 1 << (rows - 1).bit_length())
        if how is None:
            assert rows > FEW_ROWS and name not in EVERY_ROW
            continue
        assert how.depth >= 2
        assert inputs % how.chunk == 0 and how.chunk % (32 * how.warps) == 0
        assert outputs % (8 * how.tiles // (1 + gated)) == 0 and how.tiles <= 4
        assert how.held or not gated  # what is normalised is held
        height = FEW_ROWS if rows <= FEW_ROWS else MAX_ROWS
        sums = 2 * how.warps * height * (8 * how.tiles + 8) * 4
        assert sums <= STATIC
        kept = 1 if how.registers else rows * how.held  # rows of x, or the norm's gains
        assert how.ring + kept * inputs * 2 + sums + 512 <= SHARED
        if how.registers:
            assert how.held and height == MAX_ROWS
            assert height * inputs * 2 <= 512 * 32 * how.warps


def test_shapes_that_do_not_divide_are_left() -> None:
    assert plan(100, 1024, False, BLOCKS) is None
    assert plan(1024, 1003, False, BLOCKS) is None
    assert plan(1024, 8, True, BLOCKS, FEW_ROWS) is not None and plan(1024, 4, True, BLOCKS) is None


@pytest.mark.parametrize("size", [1, 2])
def test_bfloat16_stays_in_registers_where_it_fits(size: int) -> None:
    how, few = plan(4096, 6144, True, BLOCKS, MAX_ROWS, size), plan(4096, 6144, True, BLOCKS, FEW_ROWS, size)
    assert how is not None and how.held and how.registers == (size == 2)
    assert few is not None and few.held and not few.registers
    far = plan(12288, 4096, False, BLOCKS)
    assert far is not None and not far.held and not far.registers
