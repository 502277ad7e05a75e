"""Which steps are captured as CUDA graphs, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

#: Prompt tokens of the graphs for prompts, and how many prompts these take. More of either run eagerly. What
#: padding to the next size costs was measured on an H200 (2026-11-22, docs/notes/h200.md).
PROMPT_TOKENS = (
    16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 3072, 4096,
    6144, 8192,
)  # fmt: skip
MAX_PROMPTS = 64
#: Batch sizes that have a graph with prompts beside them.
MIXED_SIZES = (64, 128, 192, 256)
#: Steps that may be in flight.
SLOTS = 4


@dataclass(frozen=True)
class Captured:
    """A graph, and the logits `[R, vocab]` that it leaves."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor


def decode_sizes(largest: int) -> tuple[int, ...]:
    """Batch sizes that have a graph: 1 to 4, then about a fifth to a third apart."""
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64, *range(80, 160, 16), *range(160, 257, 32)]
    sizes += range(320, largest, 64)
    return (*(size for size in sizes if size < largest), largest)


def capture(step: Callable[[], Tensor], pool: torch.cuda._POOL_HANDLE) -> Captured:
    """Run `step` once, so that its kernels are compiled, then capture it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        logits = step()
    return Captured(graph, logits)
