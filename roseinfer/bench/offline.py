"""The engine in a worker process, as an offline throughput benchmark calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roseinfer.config import EngineConfig
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams


class Offline:
    """`settings`: the fields of EngineConfig."""

    def __init__(self, **settings: Any) -> None:
        self._llm = LLM(EngineConfig(**settings))

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int], ignore_eos: bool
    ) -> list[list[int]]:
        """Generated token ids of each prompt, greedy, in order."""
        params = [
            SamplingParams(max_tokens=most, ignore_eos=ignore_eos, seed=seed)
            for seed, most in enumerate(max_tokens)
        ]
        return self._llm.generate(prompts, params)
