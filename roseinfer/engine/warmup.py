"""Warm-up before the first request: kernels are compiled at their first use with each shape."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from roseinfer.info import EngineInfo
from roseinfer.request.params import SamplingParams

#: Prompt lengths and batch sizes that are run once.
PROMPT_LENGTHS = (1, 16, 64, 128, 256, 512, 1024)
BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
#: Requests whose sampling takes other kernels than greedy ones.
SAMPLED = (
    SamplingParams(max_tokens=2, ignore_eos=True, temperature=1.0),
    SamplingParams(max_tokens=2, ignore_eos=True, repetition_penalty=1.1),
)


class Steps(Protocol):
    """The part of an engine that warm-up calls."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def has_work(self) -> bool: ...

    def add(self, request_id: int, prompt: NDArray[np.int32], params: SamplingParams) -> object: ...

    def step(self) -> object: ...

    def flush_cache(self) -> None: ...


def warm_up(engine: Steps) -> None:
    """Run prompts and decode batches of common sizes, and on a GPU the largest steps, which have no graph,
    and the kernels that sample, so that memory is allocated and kernels are loaded. Leaves the engine empty.
    """
    longest = engine.info.limits.left(2)
    two = SamplingParams(max_tokens=2, ignore_eos=True)
    for length in sorted({min(length, longest) for length in PROMPT_LENGTHS}):
        engine.add(-1, np.zeros(length, dtype=np.int32), two)
        _drain(engine)
    config = engine.info.config
    if config.device == "cuda" and config.prefill_max_tokens is not None:
        for tokens in (max(1, config.prefill_max_tokens // 2), config.prefill_max_tokens):
            length = min(tokens, longest)
            for index in range(min(tokens // length, config.max_active_requests)):
                engine.add(-1 - index, np.zeros(length, dtype=np.int32), two)
            _drain(engine)
    for params in SAMPLED if config.device == "cuda" else ():
        engine.add(-1, np.zeros(1, dtype=np.int32), params)
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
