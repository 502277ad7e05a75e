"""`generate` of transformers for a whole batch, with the interface that run_worker.py calls."""

import torch
from transformers import AutoModelForCausalLM


class Transformers:
    """All prompts must have the same length: nothing is padded."""

    def __init__(self, model: str, device: str, dtype: str) -> None:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self._model = loaded.to(device).eval()

    def generate(self, prompts: list[list[int]], max_tokens: int, ignore_eos: bool) -> list[list[int]]:
        ids = torch.tensor(prompts, device=self._model.device)
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens if ignore_eos else 0,
                pad_token_id=0,
            )
        tokens: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return tokens
