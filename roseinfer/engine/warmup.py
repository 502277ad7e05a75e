"""Warm-up before the first request: kernels are compiled at their first use with each shape."""

from __future__ import annotations

from itertools import count, takewhile
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from roseinfer.info import EngineInfo
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.speculation import MOST_ROWS

#: Prompt lengths and batch sizes that are run once.
PROMPT_LENGTHS = (1, 16, 64, 128, 256, 512, 1024)
BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
#: Tokens of an answer that has drafts on the way; and of one that has them again when a draft model has not
#: seen more tokens than a step verifies, and then fewer.
DRAFTED, AGAIN = 12, (MOST_ROWS + 24, MOST_ROWS + 48)
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

    def forget_drafts(self, *, drafts: bool = True) -> None: ...


def warm_up(engine: Steps) -> None:
    """Run prompts and decode batches of common sizes, and on a GPU the largest steps, which have no graph,
    and the kernels that sample, so that memory is allocated and kernels are loaded, those of a draft model
    too. Leaves the engine empty.
    """
    longest = engine.info.limits.left(2)
    two = SamplingParams(max_tokens=2, ignore_eos=True)
    for length in sorted({min(length, longest) for length in PROMPT_LENGTHS}):
        engine.add(-1, np.zeros(length, dtype=np.int32), two)
        _drain(engine)
    config = engine.info.config
    if config.device == "cuda" and config.speculate not in (None, "ngram"):
        _draft(engine)
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


def _draft(engine: Steps) -> None:
    """Answer prompts of each length with drafts, once each; and the first of them again and again."""
    for length, tokens in ((PROMPT_LENGTHS[0], AGAIN[1] + DRAFTED), *((n, DRAFTED) for n in PROMPT_LENGTHS)):
        tokens = min(tokens, engine.info.limits.left(length))
        if tokens < DRAFTED:
            return
        engine.add(-1, np.zeros(length, dtype=np.int32), SamplingParams(max_tokens=tokens, ignore_eos=True))
        for step in takewhile(lambda _: engine.has_work, count()):
            if step in (DRAFTED, *AGAIN, AGAIN[0] + DRAFTED):  # whether drafts pay or not
                engine.forget_drafts(drafts=step in AGAIN)
            engine.step()
        engine.flush_cache()
        engine.forget_drafts()


def _drain(engine: Steps) -> None:
    while engine.has_work:
        engine.step()
    engine.flush_cache()
