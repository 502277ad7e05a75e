"""GEMV and skinny GEMM, for up to 16 rows of x, at the bandwidth at which memory delivers the weights: see
`stream.cu`.

Half precision, or bfloat16 with weights in E4M3, on GPUs of compute capability 9.0 or later. References:
`F.linear`, `Ops.rms_norm`, `Ops.swiglu`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from roseinfer.e4m3 import E4M3
from roseinfer.kernels.capability import is_large_hopper
from roseinfer.kernels.cuda.build import available, kernel
from roseinfer.kernels.triton.launch import multiprocessors

#: More rows than this are left to other kernels: a tensor core instruction takes 16. Up to FEW_ROWS, kernels
#: leave half of it empty, and have space for most shapes.
MAX_ROWS, FEW_ROWS = 16, 8
#: Up to this many inputs, each block keeps x (`Plan.holds_x`): 80 KB with 8 rows, 128 KB with 16. With 16
#: rows of 5,120 inputs cuBLAS was faster, held in shared memory or not (H100, 2026-11-26). Not measured with
#: other limits.
_HELD_INPUTS, _HELD_INPUTS_16 = 5_120, 4_096
#: Bytes of x that a thread keeps in registers (`Plan.registers`) at most, where it may have 672.
_THREAD_BYTES = 512
#: With more than 8 rows: places for blocks in all waves for each tile, at most. With 1.2 and more cuBLAS was
#: faster (Qwen3-32B on two H100s, 2026-11-26).
_MOST_IDLE = 1.1
#: Bytes of a weight row in a chunk at most, for this many inputs or more; half as many for fewer inputs. On
#: an H200, 2026-11-22, Qwen3-8B is faster with 2 KB than with 1 KB, and as fast with 4 KB. 2,560 bytes are
#: for inputs that 2 KB do not divide, as in half of Qwen3-32B, 2026-11-24 (docs/notes/h200-llama.md).
_MAX_CHUNK_BYTES, _MANY_INPUTS = 2560, 4096
#: Shared memory of a block, in bytes: more than half of an SM's. Otherwise two blocks of a kernel that
#: starts early could share an SM, and another SM would be idle. For weights of at most `_SMALL_WEIGHT` bytes
#: and up to 4 rows it is less, as it gains more there to have blocks of the next kernel on the same SM.
#: Measured on an H200, 2026-11-22, with one row: 8B takes 107 µs a layer with 160 KB and 127 with 112, and
#: Qwen3-0.6B 19.7 and 17.9 (docs/notes/h200-llama.md). `_SMALL_WEIGHT` lies between their weights; not
#: measured in between.
_SHARED_BYTES, _SHARED_BYTES_SMALL, _SMALL_WEIGHT = 160 * 1024, 112 * 1024, 16 << 20
#: The same for more than 8 rows: the most that a block may have, without its barriers.
_SHARED_BYTES_16 = 226 * 1024
#: Bytes of the weight in flight for each block, at least. Not measured with others.
_MIN_IN_FLIGHT = 64 * 1024


@dataclass(frozen=True)
class Plan:
    """Tiling of a GEMM: a block of `warps` computes `tiles` · 8 outputs at a time. It reads `chunk` inputs of
    them at a time into a ring buffer of `depth` stages. `holds_x`: x stays in shared memory, or in
    `registers`. `size`: bytes of an element of the weight."""

    tiles: int
    warps: int
    chunk: int
    depth: int
    holds_x: bool
    size: int = 2
    registers: bool = False

    @property
    def ring(self) -> int:
        """Bytes of the ring buffer."""
        return self.depth * chunk_bytes(self.tiles, self.size * self.chunk)


#: Tilings that are faster than those of the rule in `plan`, measured within whole layers: by inputs, outputs,
#: `gated`, `size`, and one row, up to 8 ("more") or 16. On an H200, 2026-11-22 and 2026-11-24; with 16 rows
#: those in registers and those of two ranks on an H200, 2026-11-27, others on an H100, 2026-11-26
#: (benchmarks.llama plans).
_MEASURED = {
    (2048, 1024, False, 2, "one"): Plan(1, 8, 512, 4, holds_x=True),
    # Qwen3-0.6B
    (1024, 4096, False, 2, "16"): Plan(4, 8, 512, 2, holds_x=True),
    (2048, 1024, False, 2, "16"): Plan(2, 8, 512, 8, holds_x=True),
    (1024, 3072, True, 2, "16"): Plan(4, 8, 512, 4, holds_x=True),
    (3072, 1024, False, 2, "16"): Plan(1, 8, 256, 12, holds_x=True),
    # Qwen3-30B-A3B, 2026-11-29
    (2048, 5120, False, 2, "one"): Plan(2, 8, 1024, 4, holds_x=True),
    (2048, 5120, False, 2, "more"): Plan(2, 8, 1024, 5, holds_x=True),
    (4096, 2048, False, 2, "one"): Plan(1, 8, 1024, 5, holds_x=True),
    (4096, 2048, False, 2, "more"): Plan(2, 8, 512, 7, holds_x=True),
    # Qwen3-8B, and Llama-3.1-8B, which has the same widths
    (4096, 6144, False, 2, "one"): Plan(1, 8, 1024, 11, holds_x=True),
    (4096, 6144, False, 2, "more"): Plan(1, 8, 1024, 8, holds_x=True),
    (4096, 6144, False, 2, "16"): Plan(1, 8, 1024, 11, holds_x=True, registers=True),
    (4096, 4096, False, 2, "more"): Plan(1, 8, 1024, 8, holds_x=True),
    (4096, 4096, False, 2, "16"): Plan(2, 8, 512, 11, holds_x=True, registers=True),
    (4096, 12288, True, 2, "more"): Plan(2, 8, 1024, 4, holds_x=True),
    (12288, 4096, False, 2, "one"): Plan(4, 8, 1024, 3, holds_x=False),
    (12288, 4096, False, 2, "more"): Plan(4, 8, 1024, 3, holds_x=False),
    (12288, 4096, False, 1, "16"): Plan(4, 8, 1024, 3, holds_x=False, size=1),
    # one of two ranks of Qwen3-8B
    (4096, 3072, False, 2, "one"): Plan(2, 8, 1024, 4, holds_x=True),
    (4096, 3072, False, 2, "more"): Plan(1, 8, 1024, 8, holds_x=True),
    (4096, 3072, False, 2, "16"): Plan(1, 8, 1024, 5, holds_x=True, registers=True),
    (2048, 4096, False, 2, "one"): Plan(2, 8, 1024, 5, holds_x=True),
    (2048, 4096, False, 2, "16"): Plan(4, 8, 512, 5, holds_x=True, registers=True),
    (4096, 6144, True, 2, "more"): Plan(2, 8, 1024, 4, holds_x=True),
    (6144, 4096, False, 2, "one"): Plan(4, 8, 1024, 3, holds_x=False),
    (6144, 4096, False, 2, "more"): Plan(4, 8, 1024, 3, holds_x=False),
    (6144, 4096, False, 2, "16"): Plan(4, 8, 512, 5, holds_x=False),
    # one of two ranks of Qwen3-32B
    (5120, 5120, False, 2, "one"): Plan(2, 8, 1024, 5, holds_x=True),
    (4096, 5120, False, 2, "one"): Plan(2, 8, 1024, 5, holds_x=True),
    (5120, 12800, True, 2, "one"): Plan(2, 8, 1280, 4, holds_x=True),
    (12800, 5120, False, 2, "one"): Plan(2, 8, 1280, 4, holds_x=False),
    (12800, 5120, False, 2, "more"): Plan(2, 8, 1280, 4, holds_x=False),
}


def bucket(rows: int) -> int:
    """The rows that so many are planned as."""
    return 1 << (rows - 1).bit_length()


def holds(inputs: int, rows: int) -> bool:
    """Return whether blocks keep so much of x."""
    return inputs <= (_HELD_INPUTS if rows <= FEW_ROWS else _HELD_INPUTS_16)


def fits_registers(inputs: int, rows: int, warps: int) -> bool:
    """Return whether the registers of so many warps have space for x. The kernel uses them for more than 8
    rows."""
    return rows > FEW_ROWS and 2 * MAX_ROWS * inputs <= _THREAD_BYTES * 32 * warps


def chunk_bytes(tiles: int, row_bytes: int) -> int:
    """Shared memory of a chunk; 64 bytes of padding a row avoid bank conflicts."""
    return 8 * tiles * (row_bytes + 64)


def bytes_beside(tiles: int, warps: int, inputs: int, rows: int, *, holds_x: bool, registers: bool) -> int:
    """Shared memory of a block beside its ring buffer: what `_x_bytes` says, and the sums of its warps."""
    sums = 2 * warps * _height(rows) * (8 * tiles + 8) * 4
    return _x_bytes(inputs, rows, holds_x=holds_x, registers=registers) + sums


def _x_bytes(inputs: int, rows: int, *, holds_x: bool, registers: bool) -> int:
    """Shared memory of a block for x, or for the norm's gains where x is in registers."""
    return (1 if registers else holds_x * rows) * inputs * 2


def _height(rows: int) -> int:
    return FEW_ROWS if rows <= FEW_ROWS else MAX_ROWS


@cache
def plan(
    inputs: int, outputs: int, gated: bool, blocks: int, rows: int = MAX_ROWS, size: int = 2
) -> Plan | None:
    """The tiling for a weight `[outputs, inputs]` of `size` bytes an element and up to `rows` rows of x, on a
    device that runs `blocks` blocks at once; None where none fits.

    `tiles` leaves the fewest blocks idle in the last wave. Of equals it is 2, then 4, then 1 where x is held,
    else the largest; measured on an H200, 2026-11-22, in half precision.
    """
    kind = "one" if rows == 1 else "more" if rows <= FEW_ROWS else "16"
    measured = _MEASURED.get((inputs, outputs, gated, size, kind))
    if measured is not None:
        return measured
    step = 64 // size  # inputs that a warp multiplies at once
    warps = next((warps for warps in (8, 4) if inputs % (step * warps) == 0), None)
    if warps is None:
        return None
    holds_x = holds(inputs, rows)
    idle: list[tuple[float, int]] = []
    for tiles in (2, 4, 1) if holds_x else (4, 2, 1):
        block_outputs = 8 * tiles // (1 + gated)
        if outputs % block_outputs == 0 and not (gated and tiles == 1):
            count = outputs // block_outputs
            idle.append((round(-(-count // blocks) * blocks / count, 1), tiles))
    if not idle:
        return None
    places, tiles = min(idle, key=lambda fit: fit[0])
    longest = (_MAX_CHUNK_BYTES if inputs >= _MANY_INPUTS else _MAX_CHUNK_BYTES // 2) // size
    if rows > FEW_ROWS:
        if places > _MOST_IDLE or not (holds_x or tiles == 4):
            return None
        return _plan_16(tiles, inputs, step, longest, size)
    chunk = max(c for c in range(step * warps, longest + 1, step * warps) if inputs % c == 0)
    small = rows <= 4 and size * inputs * outputs * (1 + gated) <= _SMALL_WEIGHT
    shared = _SHARED_BYTES_SMALL if small else _SHARED_BYTES
    ring_bytes = shared - bytes_beside(tiles, warps, inputs, rows, holds_x=holds_x, registers=False)
    stage = chunk_bytes(tiles, size * chunk)
    depth = min(16, max(2, -(-_MIN_IN_FLIGHT // stage), ring_bytes // stage))
    return Plan(tiles, warps, chunk, depth, holds_x, size)


def _plan_16(tiles: int, inputs: int, step: int, longest: int, size: int) -> Plan | None:
    """The tiling for 16 rows: three stages or more, or else two, of the longest chunks that fit. None where
    none do. x is held in registers where they have space; not measured for E4M3 weights."""
    fits, holds_x = [], holds(inputs, MAX_ROWS)
    for warps in (8, 4):
        registers = holds_x and size == 2 and fits_registers(inputs, MAX_ROWS, warps)
        beside = bytes_beside(tiles, warps, inputs, MAX_ROWS, holds_x=holds_x, registers=registers)
        for chunk in range(step * warps, longest + 1, step * warps):
            depth = min(16, (_SHARED_BYTES_16 - beside) // chunk_bytes(tiles, size * chunk))
            if inputs % chunk == 0 and depth >= 2:
                fits.append(Plan(tiles, warps, chunk, depth, holds_x, size, registers))
    return max(fits, key=lambda tiling: (tiling.depth >= 3, tiling.warps, tiling.chunk), default=None)


def streams(x: Tensor, weight: Tensor) -> bool:
    """Return whether kernels that stream weights run here, for `x` `[rows, inputs]` and weights of this
    dtype."""
    if len(x) > MAX_ROWS or x.element_size() != 2 or not (is_large_hopper(x.device) and available()):
        return False
    return weight.dtype == x.dtype or (weight.dtype, x.dtype) == (E4M3, torch.bfloat16)


def takes(x: Tensor, weight: Tensor, *, gated: bool = False, normed: bool = False) -> bool:
    """Return whether the kernel can multiply `x` `[rows, inputs]` with `weight` `[outputs, inputs]`."""
    if not streams(x, weight):
        return False
    outputs, size = len(weight) // (1 + gated), weight.element_size()
    tiling = plan(x.shape[1], outputs, gated, multiprocessors(x.device), bucket(len(x)), size)
    return tiling is not None and (tiling.holds_x or not normed)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    scales: Tensor | None = None,
    tiling: Plan | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`x Wᵀ`, fused with the operations before and after it that are asked for.

    Args:
        x: `[R, inputs]`, R at most MAX_ROWS.
        weight: `[outputs, inputs]` in the dtype of x, or E4M3 where x is bfloat16; with `gated`
            `[2 · outputs, inputs]`, gates first.
        bias: as many numbers as `weight` has rows.
        norm: gain `[inputs]` and epsilon of an RMS norm of x before the multiplication.
        residual: `[R, outputs]`, added to the result.
        gated: SwiGLU after the multiplication.
        scales: of an E4M3 weight, one float32 for each of its rows.
        tiling: used instead of `plan`'s.
        out: where the result goes, `[R, outputs]`.

    Returns:
        `[R, outputs]` in the dtype of x.
    """
    rows, inputs = x.shape
    outputs = len(weight) // (1 + gated)
    blocks = multiprocessors(x.device)
    tiling = tiling or plan(inputs, outputs, gated, blocks, bucket(rows), weight.element_size())
    assert tiling is not None
    if out is None:
        out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    gain, eps = norm if norm is not None else (x, 0.0)
    run = kernel(
        "stream", "stream", ("BF16", int(x.dtype == torch.bfloat16)), ("INPUTS", inputs),
        ("OUTPUTS", outputs), ("HEIGHT", _height(rows)), ("TILES", tiling.tiles),
        ("WARPS", tiling.warps), ("DEPTH", tiling.depth), ("CHUNK", tiling.chunk),
        ("HELD", 2 if tiling.registers else int(tiling.holds_x)),
        ("NORM", int(norm is not None)), ("GATED", int(gated)), ("ADD", int(residual is not None)),
        ("BIAS", int(bias is not None)), ("EPS", eps), ("EIGHT", int(scales is not None)),
    )  # fmt: skip
    count = outputs // (8 * tiling.tiles // (1 + gated))
    run(
        (min(count, blocks), 1, 1),
        32 * tiling.warps + 32,
        [
            x, gain, weight, x if scales is None else scales, x if bias is None else bias,
            x if residual is None else residual, out, rows,
        ],
        shared_bytes=tiling.ring + _x_bytes(inputs, rows, holds_x=tiling.holds_x, registers=tiling.registers),
        beside=True,
    )  # fmt: skip
    return out
