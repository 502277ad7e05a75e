"""First-use costs, paid before the first request: kernels are built once for each shape they meet."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from roseinfer.info import EngineInfo
from roseinfer.request.params import SamplingParams

#: Prompt lengths and batch sizes that are run once, and on a GPU lengths that it computes without a graph.
PROMPT_LENGTHS = (1, 16, 64, 128, 256, 512, 1024)
GPU_LENGTHS = (1536, 2048, 4096, 8192)
BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class Steps(Protocol):
    """What is warmed up: an engine that takes requests and steps."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def has_work(self) -> bool: ...

    def add(self, request_id: int, prompt: NDArray[np.int32], params: SamplingParams) -> object: ...

    def step(self) -> object: ...

    def flush_cache(self) -> None: ...


def warm_up(engine: Steps) -> None:
    """Run prompts and decode batches of the usual sizes, then leave the engine empty."""
    longest = engine.info.limits.left(2)
    two = SamplingParams(max_tokens=2, ignore_eos=True)
    lengths = PROMPT_LENGTHS + (GPU_LENGTHS if engine.info.config.device == "cuda" else ())
    for length in sorted({min(length, longest) for length in lengths}):
        engine.add(-1, np.zeros(length, dtype=np.int32), two)
        _drain(engine)
    for size in BATCH_SIZES:
        if size <= engine.info.config.max_active_requests:
            for index in range(size):
                engine.add(-1 - index, np.zeros(1, dtype=np.int32), two)
            _drain(engine)


def _drain(engine: Steps) -> None:
    while engine.has_work:
        engine.step()
    engine.flush_cache()
