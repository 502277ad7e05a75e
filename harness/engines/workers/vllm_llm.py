"""vLLM's `LLM` with the interface that run_worker.py calls."""

from typing import Any

from vllm import LLM, SamplingParams


class Vllm:
    """`arguments` are those of `vllm.LLM`."""

    def __init__(self, **arguments: Any) -> None:
        self._llm = LLM(**arguments)

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
        how = [
            SamplingParams(temperature=0, max_tokens=most, ignore_eos=ignore_eos, detokenize=False)
            for most in max_tokens
        ]
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, how, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
