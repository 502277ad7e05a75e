"""The engine in the caller's own process, for batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roseinfer.config import EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.scheduler.request import SamplingParams


class LLM:
    """`LLM(model, **settings of EngineConfig).generate(prompts, …)`."""

    def __init__(self, model: str, **settings: Any) -> None:
        self.engine = Engine(EngineConfig(model=model, **settings))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 16,
        *,
        ignore_eos: bool = False,
        sampling: SamplingParams | None = None,
    ) -> list[list[int]]:
        """Generated token ids for each prompt of token ids, in their order.

        Greedy unless `sampling` is given, whose seed is then counted up over the prompts.
        Raises RequestError when a prompt does not fit; nothing has run then.
        """
        params = sampling or SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
        outputs: list[list[int]] = [[] for _ in prompts]
        try:
            for index, prompt in enumerate(prompts):
                how = replace(params, seed=params.seed + index)
                self.engine.add(index, np.asarray(prompt, dtype=np.int32), how)
            while (result := self.engine.step()) is not None:
                for request, token in zip(result.ids.tolist(), result.tokens.tolist(), strict=True):
                    outputs[request].append(token)
        except BaseException:
            for index in range(len(prompts)):
                self.engine.discard(index)
            raise
        return outputs
