"""SGLang's `Engine` with the interface that run_worker.py calls."""

from typing import Any

import sglang


class Sglang:
    """`arguments` are those of `sglang.Engine`. Token ids go in and come out: no tokenizer is loaded."""

    def __init__(self, **arguments: Any) -> None:
        self._engine = sglang.Engine(skip_tokenizer_init=True, **arguments)

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
        how = [{"temperature": 0, "max_new_tokens": most, "ignore_eos": ignore_eos} for most in max_tokens]
        outputs = self._engine.generate(input_ids=prompts, sampling_params=how)
        return [list(output["output_ids"]) for output in outputs]
