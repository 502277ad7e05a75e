"""Which steps are captured as CUDA graphs, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from roseinfer.scheduler.policies import MIXED_SIZES

#: Prompt tokens of the graphs for prompts, and how many prompts these take. More of either run eagerly. What
#: padding to the next size costs was measured on an H200 (2026-11-22, docs/notes/h200.md).
PROMPT_TOKENS = (
    16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 3072,
    4096, 6144, 8192,
)  # fmt: skip
MAX_PROMPTS = 64
#: Rows of a large model's steps up to which they have a graph. More take longer to compute than to launch, of
#: the 8B some 35 ms, and need no padding then. Measured on an H200, 2026-11-24.
LARGE_ROWS = 2048
#: Batch sizes that have graphs with parts of prompts beside them, and how many each.
MIXED_PARTS = dict(zip(MIXED_SIZES, (16, 8, 4, 4, 4), strict=True))
#: Those with whole prompts beside them, which many requests have.
WHOLE_SIZES = MIXED_SIZES[1:]
#: Tokens of whole prompts in these are multiples of it.
WHOLE_STRIDE = 256
#: Steps that may be in flight.
SLOTS = 4


class MixedSteps(msgspec.Struct, frozen=True):
    """Steps with prompts beside requests that decode: whole prompts of up to `tokens` tokens, none of which
    is cached; or, with `cut`, parts of prompts that make up to `tokens` rows with those that decode."""

    tokens: int = 0
    cut: bool = False

    def sizes(self, max_batch: int, max_tokens: int) -> list[tuple[int, int]]:
        """Those that have a graph, the largest first: up to `max_tokens` tokens of prompts, and up to
        `max_batch` requests that decode."""
        if self.cut:
            pairs = [
                (self.tokens * part // parts - batch, batch)
                for batch, parts in _up_to(max_batch, MIXED_PARTS).items()
                for part in range(1, parts + 1)
            ]
        else:
            sizes = [size for size in PROMPT_TOKENS if size <= self.tokens and size % WHOLE_STRIDE == 0]
            batches = _up_to(max_batch, dict.fromkeys(WHOLE_SIZES, 0))
            pairs = [(size, batch) for batch in batches for size in sizes]
        return sorted((pair for pair in pairs if PROMPT_TOKENS[0] <= pair[0] <= max_tokens), reverse=True)


def _up_to(max_batch: int, sizes: dict[int, int]) -> dict[int, int]:
    """Sizes below `max_batch`, and that where a larger one holds it, with what that one has."""
    some = {size: parts for size, parts in sizes.items() if size < max_batch}
    larger = next((parts for size, parts in sizes.items() if size >= max_batch), None)
    return some if larger is None else {**some, max_batch: larger}


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
