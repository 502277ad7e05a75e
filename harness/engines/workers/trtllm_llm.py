"""TensorRT-LLM's `LLM` with the interface that run_worker.py calls."""

from typing import Any

from tensorrt_llm import SamplingParams


class Trtllm:
    """`arguments` are those of its `LLM`; `backend` chooses which."""

    def __init__(self, backend: str, **arguments: Any) -> None:
        if backend == "tensorrt":
            from tensorrt_llm._tensorrt_engine import LLM
        else:
            from tensorrt_llm import LLM
        self._llm = LLM(**arguments)

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
        how = [
            SamplingParams(temperature=0, max_tokens=most, ignore_eos=ignore_eos, detokenize=False)
            for most in max_tokens
        ]
        outputs = self._llm.generate(prompts, how, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
