"""A mixture of experts for up to 16 rows in one kernel, at the bandwidth at which memory delivers the chosen
experts' weights: see `experts.cu`.

Half precision, with weights also in E4M3, on GPUs of compute capability 9.0 or later. Reference:
`roseinfer.models.mlp.Experts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from roseinfer.kernels.capability import HOPPER_SHARED
from roseinfer.kernels.cuda.build import kernel
from roseinfer.kernels.cuda.stream import FEW_ROWS, MAX_ROWS, bucket, streams
from roseinfer.kernels.triton.launch import multiprocessors

#: Weight rows of a stage, and elements of padding of each.
_STAGE_ROWS, _PADDING = 16, 32
#: Bytes of the longest copy of a row's inputs.
_LONGEST = 2048


@dataclass(frozen=True)
class Plan:
    """A ring buffer of `depth` stages, of `chunk` inputs of gate and up, or `down_chunk` of down, of `size`
    bytes each."""

    chunk: int
    down_chunk: int
    depth: int
    size: int = 2

    @property
    def ring(self) -> int:
        """Bytes of the ring buffer."""
        return self.depth * _STAGE_ROWS * self.size * (max(self.chunk, self.down_chunk) + _PADDING)


@cache
def plans(width: int, ffn: int, experts: int, rows: int, size: int = 2) -> list[Plan]:
    """Ring buffers that fit beside `rows` rows of x, for weights of `size` bytes an element; none where the
    kernel cannot be used. The longest chunks come first: in bf16 they are the fastest with 1 to 16 rows of
    Qwen3-30B-A3B (H200, 2026-11-29)."""
    height = FEW_ROWS if rows <= FEW_ROWS else MAX_ROWS
    beside = rows * width * 2 + height * (2 * 8 * 24 * 4 + experts * 4 + 128) + experts * 12 + 1024
    fitting = []
    if experts % 32 == 0:
        longest = _LONGEST // size
        for chunk in (each for each in (2048, 1024, 512, 256) if width % each == 0 and each <= longest):
            for down_chunk in (each for each in (2048, 1024, 768, 512, 256) if ffn % each == 0):
                stage = Plan(chunk, down_chunk, 1, size).ring
                if down_chunk <= longest and (depth := (HOPPER_SHARED - beside) // stage) >= 2:
                    fitting.append(Plan(chunk, down_chunk, min(16, depth), size))
    return sorted(fitting, key=lambda plan: (-plan.chunk, -plan.down_chunk))


def takes(x: Tensor, down: Tensor) -> bool:
    """Return whether the kernel takes `x` `[rows, width]` and experts with this `down` `[experts, width,
    ffn]`."""
    if not streams(x, down):
        return False
    experts, width, ffn = down.shape
    return bool(plans(width, ffn, experts, bucket(len(x)), down.element_size()))


@cache
def _arrivals(device: torch.device) -> Tensor:
    """Blocks that have reached a barrier of all blocks, in all launches."""
    return torch.zeros(1, dtype=torch.int64, device=device)


def add_experts(
    x: Tensor,
    gain: Tensor,
    eps: float,
    router: Tensor,
    gate_up: Tensor,
    down: Tensor,
    tokens: Tensor,
    top_k: int,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
    normalized: bool,
    plan: Plan | None = None,
) -> Tensor:
    """Return `x` plus a mixture of experts of its RMS norm with `gain`, both `[rows, width]`.

    Args:
        router: `[experts, width]`.
        gate_up: `[experts, 2 · ffn, width]`, gates first.
        down: `[experts, width, ffn]`.
        tokens: of each expert so far, `[experts]` int64, counted on.
        scales: of gate_up and down in E4M3, `[experts, outputs]` float32.
        plan: used instead of the first of `plans`.
    """
    (rows, width), (experts, _, ffn), device = x.shape, down.shape, x.device
    plan = plan or plans(width, ffn, experts, bucket(rows), down.element_size())[0]
    out = torch.empty_like(x)
    logits = torch.empty(rows, experts, dtype=torch.float32, device=device)
    gated = torch.empty(min(experts, rows * top_k), rows, ffn, dtype=x.dtype, device=device)
    blocks = multiprocessors(device)
    gate_up_scales, down_scales = scales or (x, x)
    run = kernel(
        "experts", "experts", ("BF16", int(x.dtype == torch.bfloat16)), ("EIGHT", int(scales is not None)),
        ("EXPERTS", experts), ("TOP_K", top_k), ("WIDTH", width), ("FFN", ffn),
        ("NORMALIZED", int(normalized)), ("EPS", eps), ("GRID", blocks),
        ("HEIGHT", FEW_ROWS if rows <= FEW_ROWS else MAX_ROWS), ("CHUNK", plan.chunk),
        ("DOWN_CHUNK", plan.down_chunk), ("DEPTH", plan.depth),
    )  # fmt: skip
    run(
        (blocks, 1, 1),
        288,
        [
            *(x, gain, router, gate_up, gate_up_scales, down, down_scales),
            *(logits, gated, _arrivals(device), tokens, out, rows),
        ],
        shared_bytes=plan.ring + rows * width * 2,
        beside=True,
    )
    return out
