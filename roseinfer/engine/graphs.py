"""Steps that are captured as CUDA graphs, and the capture itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from roseinfer.scheduler.policies import MIXED_PARTS
from roseinfer.scheduler.speculation import MOST_ROWS

#: The most prompts in a graph.
MAX_PROMPTS = 64
#: The most rows of a large model's step with a graph. Larger steps take longer to compute (some 35 ms for an
#: 8B model) than to launch, and without a graph they need no padding. Measured on an H200, 2026-11-24.
LARGE_ROWS = 2048
#: Steps that may be in flight.
SLOTS = 4


class MixedSteps(msgspec.Struct, frozen=True):
    """Steps with prefill and decode rows. Their prompts are whole, `tokens` tokens together at most, none of
    them cached; or, with `cut`, chunks that make at most `tokens` rows together with the decode rows."""

    tokens: int = 0
    cut: bool = False


def _up_to(max_batch: int, sizes: Mapping[int, int]) -> dict[int, int]:
    """The `sizes` below `max_batch`, then `max_batch` with the value of the first size that holds it, if
    any."""
    some = {size: parts for size, parts in sizes.items() if size < max_batch}
    larger = next((parts for size, parts in sizes.items() if size >= max_batch), None)
    return some if larger is None else {**some, max_batch: larger}


@dataclass(frozen=True)
class Captured:
    """A CUDA graph, and the logits `[R, vocab]` that a replay writes."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor


def decode_sizes(largest: int) -> tuple[int, ...]:
    """Decode batch sizes with a graph, up to `largest`: 1 to 4, then about a fifth to a third apart."""
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64, *range(80, 160, 16), *range(160, 257, 32)]
    sizes += range(320, largest, 64)
    return (*(size for size in sizes if size < largest), largest)


@dataclass(frozen=True)
class GraphSizes:
    """Sizes of the steps that are captured. Larger ones run eagerly.

    Args:
        prompts: prompt tokens of prefill steps. The cost of padding to the next size was measured on an H200
            (2026-11-22, docs/notes/h200.md).
        verify: rows of steps that verify drafts.
        parts: decode batch sizes of mixed steps with chunked prompts, and how many graphs each has, which
            differ in their prompt tokens.
        whole: decode batch sizes of mixed steps with whole prompts, which run when many requests decode.
        stride: prompt tokens of those are multiples of it.
        most_prompts: prompts in a step.
        decode: returns the decode batch sizes up to the largest one.
    """

    prompts: tuple[int, ...] = (
        16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 3072,
        4096, 6144, 8192,
    )  # fmt: skip
    verify: tuple[int, ...] = (4, 8, 16, 32, MOST_ROWS)
    parts: Mapping[int, int] = field(default_factory=lambda: MIXED_PARTS)
    whole: tuple[int, ...] = tuple(MIXED_PARTS)[1:]
    stride: int = 256
    most_prompts: int = MAX_PROMPTS
    decode: Callable[[int], tuple[int, ...]] = decode_sizes

    def mixed(self, steps: MixedSteps, max_batch: int, max_tokens: int) -> list[tuple[int, int]]:
        """(prompt tokens, decode batch size) of every graph of `steps`, the largest first: at most
        `max_tokens` and `max_batch`."""
        if steps.cut:
            pairs = [
                (steps.tokens * part // parts - batch, batch)
                for batch, parts in _up_to(max_batch, self.parts).items()
                for part in range(1, parts + 1)
            ]
        else:
            sizes = [size for size in self.prompts if size <= steps.tokens and size % self.stride == 0]
            batches = _up_to(max_batch, dict.fromkeys(self.whole, 0))
            pairs = [(size, batch) for batch in batches for size in sizes]
        return sorted((pair for pair in pairs if self.prompts[0] <= pair[0] <= max_tokens), reverse=True)


class Recorder:
    """Captures steps, which return logits `[R, vocab]`, as graphs that share memory."""

    def __init__(self) -> None:
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, step: Callable[[], Tensor]) -> Captured:
        """Run `step`, so that its kernels are compiled, then capture it."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step()
            # `torch.cuda.graph` would first return the memory of this step to the GPU, each time.
            graph.capture_begin(self._pool)
            try:
                logits = step()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return Captured(graph, logits)
