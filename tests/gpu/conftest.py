"""Models that disagree with themselves when a computation is wrong, and what transformers makes of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB = 5003
#: Share of the spread of a row of logits by which a logit may be off.
MARGINS = {"fp32": 1e-4, "fp16": 0.02, "bf16": 0.08}


def make_gpt2(path: Path, *, layers: int, width: int, heads: int) -> Path:
    """A random GPT-2 at `path` whose layers, and whose positions, matter to its answers."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=VOCAB))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("transformer.h.") and parameter.dim() == 2:
                parameter.mul_(6 * (128 / width) ** 0.5)
            if name == "transformer.wpe.weight":
                parameter.mul_(10)
    model.save_pretrained(path)
    return path


@cache
def reference(folder: Path) -> GPT2LMHeadModel:
    """In float32 on the CPU."""
    return GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(folder: Path, prompt: list[int], new_tokens: int) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens, and the logits before each of them, `[new_tokens, vocab]`, float32 on the CPU."""
    with torch.inference_mode():
        out = reference(folder).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)


def check_greedy(tokens: list[int], expected: list[int], logits: torch.Tensor, margin: float) -> None:
    """`tokens` are `expected`, or one that is nearly as likely where they first differ: its reference logit
    is within `margin` of the spread from the best."""
    differs = next((i for i, (a, b) in enumerate(zip(tokens, expected, strict=False)) if a != b), None)
    if differs is not None:
        row = logits[differs]
        assert row.max() - row[tokens[differs]] <= margin * (row.max() - row.min())
