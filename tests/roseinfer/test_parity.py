"""Greedy tokens and logits against transformers' own models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import rosemodels
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
def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(model: PreTrainedModel, prompt: list[int], new_tokens: int) -> list[int]:
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0,
        )  # fmt: skip
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def answers(reference: PreTrainedModel) -> list[tuple[list[int], list[int]]]:
    """Prompts of 1 to 500 tokens, and what transformers makes of them."""
    pairs = [(prompt, greedy(reference, prompt, NEW_TOKENS)) for prompt in prompts(32, 500)]
    eos = reference.config.eos_token_id
    ends = {*eos} if isinstance(eos, list) else {eos}
    assert not any(ends & {*answer} for _, answer in pairs), (
        "transformers forbids EOS under min_new_tokens; choose another seed"
    )
    assert len({token for _, answer in pairs for token in answer}) > 100, "too uniform to prove much"
    return pairs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cpu_kernels": False, "packed_weights": False},
        {"chunked_prefill_size": 48, "prefix_cache": True},
        {"kv_tokens": 560, "block_size": 2, "prefill_max_tokens": 4096},
    ],
    ids=["kernels", "plain", "chunked", "preempting"],
)
def test_greedy_tokens_equal_transformers(
    folder: Path, answers: list[tuple[list[int], list[int]]], settings: dict[str, object]
) -> None:
    llm = LLM(EngineConfig(str(folder), device="cpu", dtype="fp32", warmup=False, **settings))
    rng = np.random.default_rng(1)
    wanted = rng.integers(1, NEW_TOKENS + 1, len(answers)).tolist()  # so that batches shrink and grow
    outputs = llm.generate(
        [prompt for prompt, _ in answers], [SamplingParams(max_tokens=n, ignore_eos=True) for n in wanted]
    )
    llm.engine.check_idle()
    assert outputs == [answer[:count] for (_, answer), count in zip(answers, wanted, strict=True)]
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


def test_logits_equal_transformers(folder: Path, reference: PreTrainedModel) -> None:
    """fp32 within 1e-3 of the spread of the logits, bf16 (8 bits of mantissa) within 5 %."""
    for prompt in prompts(8, 300):
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt])).logits[0, -1]
        spread = expected.max() - expected.min()
        for dtype, bound in ((torch.float32, 1e-3), (torch.bfloat16, 0.05)):
            difference = (prompt_logits(folder, dtype, prompt) - expected).abs().max()
            assert difference < bound * spread


def test_stops_at_end_of_text(folder: Path, reference: PreTrainedModel, tmp_path: Path) -> None:
    """The end-of-text token ends an answer unless it is ignored or min_tokens are not there yet."""
    prompt = prompts(8, 100)[7]
    tokens = greedy(reference, prompt, 12)
    changed = shutil.copytree(folder, tmp_path / "model")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(config | {"eos_token_id": tokens[5]}))
    llm = LLM(EngineConfig(str(changed), device="cpu", dtype="fp32", warmup=False))
    first = tokens.index(tokens[5])

    def run(**params: object) -> list[int]:
        return llm.generate([prompt], SamplingParams(max_tokens=12, **params))[0]

    assert run() == tokens[: first + 1]
    assert run(ignore_eos=True) == tokens
    assert run(min_tokens=first + 2)[: first + 2] == tokens[: first + 2]


def test_smollm2_with_its_real_weights() -> None:
    """English in, the same English out as transformers, in fp32; bf16 logits within 5 % of their spread."""
    try:
        folder = rosemodels.folder("smollm2-135m")
    except rosemodels.ModelError as error:
        pytest.skip(str(error))
    assert folder is not None
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    llm = LLM(EngineConfig("smollm2-135m", device="cpu", dtype="fp32", kv_tokens=1024, warmup=False))
    assert llm.tokenizer is not None
    texts = ["The capital of France is", "Water boils when", "def fibonacci(n):"]
    cases = [llm.tokenizer.encode(text).tolist() for text in texts]
    outputs = llm.generate(cases, SamplingParams(max_tokens=10, ignore_eos=True))
    assert outputs == [greedy(reference, case, 10) for case in cases]
    detokenizer = llm.tokenizer.detokenizer()
    assert "Paris" in "".join(detokenizer.push(token) for token in outputs[0])
    with torch.inference_mode():
        expected = reference(torch.tensor([cases[0]])).logits[0, -1]
    difference = (prompt_logits(folder, torch.bfloat16, cases[0]) - expected).abs().max()
    assert difference < 0.05 * (expected.max() - expected.min())
