"""Greedy answers of a model by transformers in float32, and how much its own dtype changes the logits.

    python reference_worker.py JOB.json RESULT.json

Runs with any interpreter that has torch and transformers; it imports nothing of this project.
JOB.json: {"model", "device", "dtype", "prompts", "output_tokens", "candidates"}.
RESULT.json: {"version", "noise", "spread", "ends", "answers": [{"tokens", "candidates", "end"}]}.

An answer ends before its first end-of-sequence token, one of `ends`. `candidates` are, for each token of an
answer, the ids with the largest logits and how far each is below the largest; `end` those where the
end-of-sequence token is, null where there is none. `noise` is the largest change of any logit from float32 to
the dtype over all answers, `spread` the standard deviation of the logits.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # what imports make stays: nobody need look through it for garbage

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


def answer(model: Any, prompt: list[int], count: int) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens, and the logits [n, vocabulary] that each was chosen from."""
    step, cache, tokens, rows = torch.tensor([prompt], device=model.device), None, [], []
    for _ in range(count):
        out = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache, row = out.past_key_values, out.logits[0, -1].float()
        tokens.append(int(row.argmax()))
        rows.append(row)
        step = torch.tensor([tokens[-1:]], device=model.device)
    return tokens, torch.stack(rows)


def logits_along(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """The logits [n, vocabulary] of the positions at which `tokens` were chosen."""
    ids = torch.tensor([prompt + tokens[:-1]], device=model.device)
    rows: torch.Tensor = model(input_ids=ids).logits[0, len(prompt) - 1 :].float()
    return rows


def candidates(rows: torch.Tensor, count: int) -> list[list[tuple[int, float]]]:
    """The best `count` tokens of each row, each with how far it is below the first."""
    best = rows.topk(count)
    shortfalls = (best.values[:, :1] - best.values).tolist()
    pairs = zip(best.indices.tolist(), shortfalls, strict=True)
    return [list(zip(ids, below, strict=True)) for ids, below in pairs]


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    model = model.to(job["device"]).eval()
    ends: set[int] = set()
    for config in (model.config, model.generation_config):
        eos = config.eos_token_id if config is not None else None
        ends.update(eos if isinstance(eos, list) else [eos] if eos is not None else [])
    answers, noise, spread = [], 0.0, 0.0
    with torch.inference_mode():
        greedy = []
        for prompt in job["prompts"]:
            tokens, rows = answer(model, prompt, job["output_tokens"])
            stop = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
            greedy.append((prompt, tokens[: stop + 1], rows[: stop + 1]))
        model = model.to(getattr(torch, job["dtype"]))
        for prompt, tokens, rows in greedy:
            best = candidates(rows, job["candidates"])
            end = best.pop() if tokens[-1] in ends else None
            answers.append({"tokens": tokens[: len(best)], "candidates": best, "end": end})
            noise = max(noise, float((logits_along(model, prompt, tokens) - rows).abs().max()))
            spread = max(spread, float(rows.std()))
    version = f"transformers {transformers.__version__}, torch {torch.__version__}"
    result = {"version": version, "noise": noise, "spread": spread, "ends": sorted(ends), "answers": answers}
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    gc.enable()
    main(*sys.argv[1:])
    gc.freeze()
