"""Greedy tokens and logits against transformers' own models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig

import rosemodels
from roseinfer.attention.backends import make_attention
from roseinfer.engine.core import Engine
from roseinfer.kernels.cpu.build import has_bf16_products
from roseinfer.kvcache.pool import KVPool
from roseinfer.llm import LLM
from roseinfer.models import config
from roseinfer.models.load import load
from roseinfer.request.params import SamplingParams
from roseinfer.tokenizer.chat import ChatTemplate
from roseinfer.tokenizer.tokenizer import load_tokenizer
from tests.roseinfer.conftest import (
    HYBRIDS,
    LLAMAS,
    config_of,
    generate,
    lay_out,
    make_batch,
    reference_logits,
    save_llama,
)

pytestmark = pytest.mark.slow

NEW_TOKENS = 16


def prompts(count: int, longest: int, vocab: int = 5003) -> list[list[int]]:
    rng = np.random.default_rng(7)
    lengths = [1, 2, 15, 16, 17, longest, *rng.integers(1, longest, count - 6)]
    return [rng.integers(0, vocab - 1, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def answers(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Prompts of 1 to 180 tokens, and what transformers makes of them."""
    requests, params = prompts(9, 180), SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    pairs = list(zip(requests, LLM(config_of(folder)).generate(requests, params), strict=True))
    assert all(is_greedy(folder, *pair) for pair in pairs)
    assert len({token for _, answer in pairs for token in answer}) > 45, "too uniform to prove much"
    return pairs


#: Models and settings: for GPT-2 test_core.py has prompts in parts and preempted requests,
#: for models with states test_states.py.
SETTINGS = [
    *product(["gpt2", *LLAMAS, *HYBRIDS], [{}, {"cpu_kernels": False, "packed_weights": False}]),
    *product(
        ["llama", "qwen3_moe"],
        [
            {"chunked_prefill_size": 48, "prefix_cache": True},
            {"kv_tokens": 240, "block_size": 2, "prefill_max_tokens": 4096},
        ],
    ),
]


@pytest.mark.parametrize(("folder", "settings"), SETTINGS, indirect=["folder"], scope="session")
def test_greedy_tokens_equal_transformers(folder, answers, settings):
    engine, rng = Engine(config_of(folder, **settings)), np.random.default_rng(1)
    counts = rng.integers(1, NEW_TOKENS + 1, len(answers)).tolist()  # so that batches shrink and grow
    requests = [
        (prompt, SamplingParams(count, ignore_eos=True))
        for (prompt, _), count in zip(answers, counts, strict=True)
    ]
    expected = [answer[:count] for (_, answer), count in zip(answers, counts, strict=True)]
    assert [answer.tokens for answer in generate(engine, requests)] == expected
    assert (engine.preemptions > 0) == ("kv_tokens" in settings)


def prompt_logits(
    folder: Path, dtype: torch.dtype, max_model_len: int | None = None
) -> Callable[[list[int]], torch.Tensor]:
    """Logits after the last token of a prompt, through the engine's own model and attention."""
    model = load(str(folder), torch.device("cpu"), dtype, max_model_len=max_model_len)
    pool = KVPool(model.config.kv_shape(dtype), 64, 16, torch.device("cpu"))
    attention = make_attention(pool, cpu_kernels=True).attention

    @torch.inference_mode()
    def logits(prompt: list[int]) -> torch.Tensor:
        _, table, slots = lay_out([len(prompt)], 16, np.random.default_rng(0))
        attention.begin(make_batch([0], [len(prompt)], table, slots, 16, decoding=0))
        hidden = model.forward(torch.tensor(prompt), torch.arange(len(prompt)), attention)
        return model.logits(hidden[-1:]).float()[0]

    return logits


def test_logits_equal_transformers(folder: Path) -> None:
    """fp32 within 1e-3 of the spread of the logits, bf16 (8 bits of mantissa) within 5 %, or 15 % of models
    whose states carry what is rounded on from token to token."""
    hybrid = config.read(folder).state_shape is not None
    expected = {tuple(prompt): reference_logits(folder, prompt)[-1] for prompt in prompts(6, 100)}
    for dtype, bound in ((torch.float32, 1e-3), (torch.bfloat16, 0.15 if hybrid else 0.05)):
        logits = prompt_logits(folder, dtype)
        for prompt, theirs in expected.items():
            assert (logits([*prompt]) - theirs).abs().max() < bound * (theirs.max() - theirs.min())


def test_dynamic_scaling_is_that_of_transformers_for_the_longest_requests(tmp_path: Path) -> None:
    """And for all where the context is no longer than the training's."""
    scaling = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    save_llama(
        tmp_path,
        LlamaConfig(
            vocab_size=503, num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=2,
            max_position_embeddings=64, rope_parameters=scaling,
        ),
    )  # fmt: skip
    for max_model_len, lengths in ((64, (10, 64)), (200, (200,)), (None, (256,))):
        logits = prompt_logits(tmp_path, torch.float32, max_model_len)
        for length in lengths:
            prompt = np.random.default_rng(0).integers(0, 503, length).tolist()
            expected = reference_logits(tmp_path, prompt)[-1]
            assert (logits(prompt) - expected).abs().max() < 1e-3 * (expected.max() - expected.min())


def is_greedy(folder: Path, prompt: list[int], answer: list[int]) -> bool:
    """Return whether each token of `answer` is the likeliest after those before it."""
    logits = reference_logits(folder, prompt + answer)[len(prompt) - 1 : -1]
    return logits.argmax(-1).tolist() == answer


def real_folder(name: str) -> Path:
    try:
        return rosemodels.folder(name)
    except rosemodels.ModelError as error:
        pytest.skip(str(error))


TOWN = (
    "In the beginning of the nineteenth century the town had only one bridge, built of wood, and those who "
    "wanted to cross the river in winter often waited for the ice."
)


@pytest.mark.parametrize("name", ["random:gpt2", "smollm2-135m"])
def test_logits_of_models_of_real_size(integration: None, name: str) -> None:
    """fp32 logits are transformers'. In bf16 they are off by at most 1.2 % of their spread, and 0.3 % in the
    root mean square, 0.5 % where the processor multiplies in bf16; transformers' own bf16 is off by up to 1.7
    and 0.8 %."""
    folder = real_folder(name)
    tokenizer = load_tokenizer(str(folder))
    expected = {tuple(prompt): reference_logits(folder, prompt)[-1] for prompt in
                (tokenizer.encode(text).tolist() for text in ("def fibonacci(n):", TOWN))}  # fmt: skip
    in_bf16 = 0.005 if has_bf16_products() else 0.003
    for dtype, most, mean in ((torch.float32, 1e-3, 1e-3), (torch.bfloat16, 0.012, in_bf16)):
        logits = prompt_logits(folder, dtype)
        for prompt, theirs in expected.items():
            error = (logits([*prompt]) - theirs) / (theirs.max() - theirs.min())
            assert error.abs().max() < most and error.square().mean().sqrt() < mean


def test_chat_with_smollm2(integration: None) -> None:
    """The conversation's tokens and the greedy answer are transformers', and the answer is English."""
    folder = real_folder("smollm2-135m")
    template, tokenizer = ChatTemplate.load(folder), load_tokenizer(str(folder))
    theirs = AutoTokenizer.from_pretrained(folder)
    llm = LLM(config_of(folder, kv_tokens=256, max_model_len=128))
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.encode(template.render(talk), special_tokens=False).tolist()
    assert prompt == theirs.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    output = llm.generate([prompt], SamplingParams(max_tokens=10))[0]
    ends = output[-1] == theirs.eos_token_id
    assert (len(output) == 10 or ends) and is_greedy(folder, prompt, output)
    assert theirs.eos_token_id not in output[:-1]
    detokenizer = tokenizer.detokenizer()
    assert "".join(map(detokenizer.push, output)).startswith("The capital of France is Paris.")
