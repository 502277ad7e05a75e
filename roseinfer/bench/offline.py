"""The engine in a worker process, as an offline throughput benchmark calls it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from roseinfer.config import EngineConfig
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.scheduler import StepResult


class Offline:
    """`settings`: the fields of EngineConfig."""

    def __init__(self, **settings: Any) -> None:
        self._llm = LLM(EngineConfig(**settings))
        self._step = self._llm.engine.step
        self._llm.engine.step = self._timed_step  # type: ignore[method-assign]
        self._first = self._last = np.empty(0)

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int], ignore_eos: bool
    ) -> list[list[int]]:
        """Generated token ids of each prompt, greedy, in order."""
        params = [
            SamplingParams(max_tokens=most, ignore_eos=ignore_eos, seed=seed)
            for seed, most in enumerate(max_tokens)
        ]
        self._first, self._last = np.full(len(prompts), np.nan), np.full(len(prompts), np.nan)
        return self._llm.generate(prompts, params)

    def token_times(self) -> list[tuple[float, float]]:
        """Return the times of the first and the last token of each prompt of the latest call.

        They are the monotonic clock's, in seconds, when the step that computed the token had ended.
        """
        return list(zip(self._first.tolist(), self._last.tolist(), strict=True))

    def _timed_step(self) -> StepResult | None:
        result = self._step()
        if result is not None:
            self._last[result.ids] = now = time.monotonic()
            self._first[result.ids] = np.fmin(self._first[result.ids], now)
        return result
