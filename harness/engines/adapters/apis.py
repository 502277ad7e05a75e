"""In-process APIs of engines, each with the interface that `run_worker.py` calls.

An engine's own interpreter runs this file, so each class imports its engine itself. `arguments` are those of
the engine's own class.
"""

from functools import partial
from importlib import import_module
from typing import Any


class Lmdeploy:
    """Runs `lmdeploy.pipeline` with one of its back ends. Its public methods take text alone; token ids go
    through the method that all of them call."""

    def __init__(self, model: str, backend: str = "turbomind", **arguments: Any) -> None:
        import lmdeploy

        names = {"turbomind": "TurbomindEngineConfig", "pytorch": "PytorchEngineConfig"}
        self._pipeline = lmdeploy.pipeline(model, getattr(lmdeploy, names[backend])(**arguments))
        if self._pipeline.async_engine.backend != backend:
            raise RuntimeError(f"LMDeploy does not compute with {backend}, of which its log says more")

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
        from lmdeploy import GenerationConfig

        requests = [
            {
                "session_id": self._pipeline.session(),
                "messages": None,
                "input_ids": prompt,
                "gen_config": GenerationConfig(max_new_tokens=most, ignore_eos=ignore_eos),
                "do_preprocess": False,
                "stream_response": False,
            }
            for prompt, most in zip(prompts, max_tokens, strict=True)
        ]
        answers = self._pipeline._infer(iter(requests), multiplex=False)
        return [[token for part in answer for token in part.token_ids] for answer in answers]


class Minisgl:
    """Runs `minisgl.llm.LLM`."""

    def __init__(self, dtype: str, **arguments: Any) -> None:
        import torch
        from minisgl.llm import LLM

        self._llm = LLM(dtype=getattr(torch, dtype), **arguments)

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
        from minisgl.core import SamplingParams

        sampling = [SamplingParams(ignore_eos=ignore_eos, max_tokens=most) for most in max_tokens]
        return [list(answer["token_ids"]) for answer in self._llm.generate(prompts, sampling)]


class Sglang:
    """Runs `sglang.Engine`. Token ids go in and come out: no tokenizer is loaded."""

    def __init__(self, **arguments: Any) -> None:
        import sglang

        self._engine = sglang.Engine(skip_tokenizer_init=True, **arguments)

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
        sampling = [{"temperature": 0, "max_new_tokens": n, "ignore_eos": ignore_eos} for n in max_tokens]
        outputs = self._engine.generate(input_ids=prompts, sampling_params=sampling)
        return [list(output["output_ids"]) for output in outputs]


class Transformers:
    """Runs `generate` of transformers for a whole batch of prompts of one length: nothing is padded."""

    def __init__(self, model: str, device: str, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self._model = network.to(device).eval()
        ends = self._model.generation_config.eos_token_id
        self._ends = {*ends} if isinstance(ends, list) else {ends}

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
        import torch

        if len({len(prompt) for prompt in prompts}) > 1 or len(set(max_tokens)) > 1:
            raise ValueError("transformers' generate takes prompts and answers of one length alone")
        most = max_tokens[0]
        ids = torch.tensor(prompts, device=self._model.device)
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=most,
                min_new_tokens=most if ignore_eos else 0,
                repetition_penalty=1.0,
                pad_token_id=0,
            )
        return [self._until_end(answer) for answer in output[:, ids.shape[1] :].tolist()]

    def _until_end(self, answer: list[int]) -> list[int]:
        """Cut an answer after its end token, after which the batch is filled up."""
        end = next((place for place, token in enumerate(answer) if token in self._ends), len(answer))
        return answer[: end + 1]


class Trtllm:
    """Runs the `LLM` of TensorRT-LLM that `backend` chooses."""

    def __init__(self, backend: str, **arguments: Any) -> None:
        if backend == "tensorrt":
            from tensorrt_llm._tensorrt_engine import LLM
        else:
            from tensorrt_llm import LLM
        self._llm = LLM(**arguments)

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
        from tensorrt_llm import SamplingParams

        greedy = partial(SamplingParams, temperature=0, ignore_eos=ignore_eos, detokenize=False)
        sampling = [greedy(max_tokens=most) for most in max_tokens]
        outputs = self._llm.generate(prompts, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


class Vllm:
    """Runs `vllm.LLM`."""

    package = "vllm"

    def __init__(self, **arguments: Any) -> None:
        self._module = import_module(self.package)
        self._llm = self._module.LLM(**arguments)

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
        greedy = partial(self._module.SamplingParams, temperature=0, ignore_eos=ignore_eos, detokenize=False)
        sampling = [greedy(max_tokens=most) for most in max_tokens]
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


class Aphrodite(Vllm):
    """Runs `aphrodite.LLM`."""

    package = "aphrodite"
