"""Offline inference: the engine in the caller's process, for batches of prompts."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.config import EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.request.params import SamplingParams
from roseinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer


class LLM:
    """`LLM(EngineConfig(model, …)).generate(prompts, …)`."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine = Engine(config)
        self.tokenizer: Tokenizer | None = load_tokenizer(config.model)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[list[int]]:
        """Generated token ids for each prompt of token ids, in their order.

        One `params` serves all prompts, each answered as it would be alone. For different answers to the same
        prompt, give one for each, with different seeds. Raises RequestError when a prompt does not fit, and
        UnknownTokenError, also a ValueError, when an id is not in the vocabulary; then nothing has run.
        """
        if isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        outputs: list[list[int]] = [[] for _ in prompts]
        try:
            for index, (prompt, how) in enumerate(zip(prompts, params, strict=True)):
                self.engine.add(index, self.engine.info.limits.token_ids(prompt), how)
            while (result := self.engine.step()) is not None:
                for request, token in zip(result.ids.tolist(), result.tokens.tolist(), strict=True):
                    outputs[request].append(token)
        except BaseException:
            for index in range(len(prompts)):
                self.engine.discard(index)
            raise
        return outputs
