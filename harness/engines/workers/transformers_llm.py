"""`generate` of transformers for a whole batch, with the interface that run_worker.py calls."""

import torch
from transformers import AutoModelForCausalLM


class Transformers:
    """All prompts and all answers must have the same length: nothing is padded."""

    def __init__(self, model: str, device: str, dtype: str) -> None:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self._model = loaded.to(device).eval()
        ends = self._model.generation_config.eos_token_id
        self._ends = {*ends} if isinstance(ends, list) else {ends}

    def generate(self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool) -> list[list[int]]:
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
        return [self._generated(answer) for answer in output[:, ids.shape[1] :].tolist()]

    def _generated(self, answer: list[int]) -> list[int]:
        """An answer to its end token; after that the batch is filled up."""
        end = next((place for place, token in enumerate(answer) if token in self._ends), len(answer))
        return answer[: end + 1]
