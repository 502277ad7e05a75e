"""Greedy tokens and logits against transformers' own GPT-2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from roseinfer import models
from roseinfer.attention.backends import make_attention
from roseinfer.attention.base import Batch, Segment
from roseinfer.config import EngineConfig
from roseinfer.kvcache.pool import KVPool
from roseinfer.llm import LLM
from roseinfer.params import SamplingParams

NEW_TOKENS = 24


def prompts(count: int, longest: int, vocab: int = 5003) -> list[list[int]]:
    rng = np.random.default_rng(7)
    lengths = [1, 2, 15, 16, 17, longest, *rng.integers(1, longest, count - 6)]
    return [rng.integers(0, vocab - 1, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def reference(gpt2_folder: Path) -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(gpt2_folder, dtype=torch.float32).eval()


def greedy(model: GPT2LMHeadModel, prompt: list[int], new_tokens: int) -> list[int]:
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0,
        )  # fmt: skip
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cpu_kernels": False, "packed_weights": False},
        {"kv_tokens": 930, "block_size": 2, "prefill_max_tokens": 4096},
    ],
    ids=["kernels", "plain", "preempting"],
)
def test_greedy_tokens_equal_transformers(
    gpt2_folder: Path, reference: GPT2LMHeadModel, settings: dict[str, object]
) -> None:
    cases = prompts(56, 900)
    eos = reference.config.eos_token_id
    llm = LLM(EngineConfig(str(gpt2_folder), device="cpu", dtype="fp32", warmup=False, **settings))
    rng = np.random.default_rng(1)
    wanted = [int(rng.integers(1, NEW_TOKENS + 1)) for _ in cases]  # so that batches shrink and grow
    outputs = llm.generate(cases, [SamplingParams(max_tokens=n, ignore_eos=True) for n in wanted])
    llm.engine.check_idle()
    for prompt, tokens, count in zip(cases, outputs, wanted, strict=True):
        expected = greedy(reference, prompt, count)
        assert eos not in expected, "transformers forbids EOS under min_new_tokens; choose another seed"
        assert tokens == expected
    assert len({token for tokens in outputs for token in tokens}) > 100, (
        "answers are too uniform to prove much"
    )
    if "kv_tokens" in settings:
        assert llm.engine.preemptions > 0


def prompt_logits(folder: Path, dtype: torch.dtype, prompt: list[int]) -> torch.Tensor:
    """Logits behind the last token of `prompt`, through the engine's own model and attention."""
    model = models.load(str(folder), torch.device("cpu"), dtype, packed=True, cpu_kernels=True, fused=False)
    pool = KVPool(model.config, 64, 16, torch.device("cpu"), dtype)
    attention, _ = make_attention(pool, model.config, dtype, cpu_kernels=True)
    count, none = len(prompt), np.empty(0, dtype=np.int64)
    rows = np.arange(count)
    batch = Batch(
        tokens=np.array(prompt), positions=rows, cache_slots=rows, segments=(Segment(0, count, 0, none, 0),),
        decode_lengths=none, last_rows=rows[-1:], requests=rows[:1], block_table=none.reshape(0, 0),
        block_size=16,
    )  # fmt: skip
    attention.begin(batch)
    with torch.inference_mode():
        hidden = model.forward(torch.from_numpy(batch.tokens), torch.from_numpy(rows), attention)
        return model.logits(hidden[-1:]).float()[0]


def test_logits_equal_transformers(gpt2_folder: Path, reference: GPT2LMHeadModel) -> None:
    """fp32 within 1e-3 of the spread of the logits, bf16 (8 bits of mantissa) within 5 %."""
    for prompt in prompts(8, 300):
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt])).logits[0, -1]
        spread = expected.max() - expected.min()
        for dtype, bound in ((torch.float32, 1e-3), (torch.bfloat16, 0.05)):
            difference = (prompt_logits(gpt2_folder, dtype, prompt) - expected).abs().max()
            assert difference < bound * spread


def test_stops_at_end_of_text(gpt2_folder: Path, reference: GPT2LMHeadModel, tmp_path: Path) -> None:
    """The end-of-text token ends an answer unless it is ignored or min_tokens are not there yet."""
    prompt = prompts(8, 100)[7]
    tokens = greedy(reference, prompt, 12)
    folder = shutil.copytree(gpt2_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": tokens[5]}))
    llm = LLM(EngineConfig(str(folder), device="cpu", dtype="fp32", warmup=False))
    first = tokens.index(tokens[5])

    def run(**params: object) -> list[int]:
        return llm.generate([prompt], SamplingParams(max_tokens=12, **params))[0]

    assert run() == tokens[: first + 1]
    assert run(ignore_eos=True) == tokens
    assert run(min_tokens=first + 2)[: first + 2] == tokens[: first + 2]
