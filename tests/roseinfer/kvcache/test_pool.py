"""Keys and values cached in 8-bit floats, against transformers with a cache that rounds them in float32."""

from __future__ import annotations

import logging
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.config import ConfigError, EngineConfig
from roseinfer.e4m3 import E4M3, to_e4m3
from roseinfer.engine import resolve
from roseinfer.engine.core import Engine
from roseinfer.kvcache.pool import KVPool, KVShape
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams
from tests.roseinfer.conftest import LLAMAS, config_of, lay_out, make_batch, on_models, reference_attention

CPU = torch.device("cpu")
NEW = 7
#: Models without states.
PLAIN = ["gpt2", *LLAMAS]
#: Share of the spread of a row of logits by which a token may be less likely than the likeliest: the other
#: order of a sum can round an element to the other of its neighbours.
MARGIN = 0.01

#: A prompt, its greedy answer, and the logits before each of the answer's tokens.
Case = tuple[list[int], list[int], torch.Tensor]


class RoundingCache(DynamicCache):  # type: ignore[misc]
    """A cache that rounds as torch's own conversion to E4M3 does, which saturates."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **more: Any) -> Any:
        rounded = (x.clamp(-448, 448).to(torch.float8_e4m3fn).float() for x in (keys, values))
        return super().update(*rounded, *args, **more)


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[Case]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rng = np.random.default_rng(3)
    answers = []
    for length in [1, 2, 16, 17, 150, *rng.integers(1, 60, 5)]:
        prompt = rng.integers(0, 5000, length).tolist()
        with torch.inference_mode():
            out = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, length, dtype=torch.long),
                past_key_values=RoundingCache(), max_new_tokens=NEW, do_sample=False, pad_token_id=0,
                eos_token_id=None, output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        answers.append((prompt, out.sequences[0, length:].tolist(), torch.cat(out.logits)))
    assert len({token for _, answer, _ in answers for token in answer}) > 30, "too uniform to prove much"
    return answers


SETTINGS = [
    *product(PLAIN, [{}, {"cpu_kernels": False, "packed_weights": False, "overlap_schedule": True}]),
    ("llama", {"chunked_prefill_size": 24, "prefix_cache": True}),
    ("llama", {"kv_tokens": 210, "block_size": 2, "prefill_max_tokens": 4096}),
]


@pytest.mark.parametrize(("folder", "settings"), SETTINGS, indirect=["folder"], scope="session")
def test_answers_are_those_of_a_model_with_rounded_keys_and_values(folder, cases, settings):
    llm = LLM(config_of(folder, kv_cache_dtype="fp8", **({"prefix_cache": False} | settings)))
    prompts = [prompt for prompt, _, _ in cases]
    for _ in range(2 if "prefix_cache" in settings else 1):  # the second time it has whole prompts
        answers = llm.generate(prompts, SamplingParams(NEW, ignore_eos=True))
        for answer, (_, expected, logits) in zip(answers, cases, strict=True):
            differs = next((i for i, (a, b) in enumerate(zip(answer, expected, strict=True)) if a != b), None)
            if differs is not None:
                row = logits[differs]
                assert row.max() - row[answer[differs]] <= MARGIN * (row.max() - row.min())
        assert sum(answer == expected for answer, (_, expected, _) in zip(answers, cases, strict=True)) >= 8
    assert (llm.engine.cached_tokens > 0) == ("prefix_cache" in settings)
    assert (llm.engine.preemptions > 0) == ("kv_tokens" in settings)


@on_models(["gpt2", "llama"])
def test_a_cache_that_rounds_changes_answers(folder, cases):
    """The comparison above would show it if keys and values were not rounded."""
    llm = LLM(config_of(folder))
    answers = llm.generate([prompt for prompt, _, _ in cases], SamplingParams(NEW, ignore_eos=True))
    assert sum(answer == expected for answer, (_, expected, _) in zip(answers, cases, strict=True)) < 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_meets_what_is_stored(dtype: torch.dtype) -> None:
    """Prompts, one after cached tokens, beside a request that decodes, with elements beyond E4M3's range."""
    torch.manual_seed(0)
    counts, contexts, size = [6, 4, 1], [0, 9, 12], 4
    blocks, table, slots = lay_out(
        [c + n for c, n in zip(contexts, counts, strict=True)], size, np.random.default_rng(1)
    )
    pool = KVPool(KVShape(1, 2, 16, E4M3), blocks, size, CPU)
    keys, values = pool.layer(0)
    for slot, context in zip(slots, contexts, strict=True):
        for cache in (keys, values):
            cache.view(torch.uint8)[slot[:context]] = to_e4m3(torch.randn(context, 2, 16)).view(torch.uint8)
    starts = np.cumsum([0, *counts])
    q = torch.randn(starts[-1], 4, 16).to(dtype)
    k, v = (torch.randn(2, starts[-1], 2, 16) * 3).to(dtype)
    v[2, 0, 3], v[5, 1, 0], v[-1, 1, 1] = 1e4, -1e5, 600
    attention = TorchPagedAttention(pool)
    attention.begin(make_batch(contexts, counts, table, slots, size, decoding=1))
    got = attention.attend(0, q, k, v).double()
    for slot, context, start, end in zip(slots, contexts, starts, starts[1:], strict=False):
        wide_k, wide_v = (cache.view(torch.uint8)[slot].view(E4M3).double() for cache in (keys, values))
        for cached, new in ((wide_k, k), (wide_v, v)):
            exact = new[start:end].double().clamp(-448, 448)
            assert ((cached[context:] - exact).abs() <= exact.abs() / 16 + 2**-10).all()
        expected = reference_attention(q[start:end], wide_k, wide_v).view(-1, 4, 16)
        bound = (1e-5 if dtype == torch.float32 else 2e-2) * expected.abs().amax(-1, keepdim=True)
        assert ((got[start:end].view(-1, 4, 16) - expected).abs() <= bound).all()


def test_blocks_are_copied_byte_by_byte() -> None:
    pool = KVPool(KVShape(2, 1, 16, E4M3), 3, 4, CPU)
    for layer in range(2):
        for cache in pool.layer(layer):
            cache.view(torch.uint8).copy_(torch.randint(0, 126, cache.shape))
    before = pool.layer(1)[0].view(torch.uint8).clone()
    pool.copy_blocks(np.array([0, 1]), np.array([1, 2]))
    after = pool.layer(1)[0].view(torch.uint8)
    assert torch.equal(after[4:12], before[:8]) and torch.equal(after[:4], before[:4])


def test_what_is_cached_is_said(gpt2_folder, caplog, monkeypatch):
    """The same memory has room for four times as many tokens as in float32."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=60 << 20))
    limits = {"kv_tokens": None, "max_model_len": 16, "max_active_requests": 10_000}
    engines = {
        dtype: Engine(config_of(gpt2_folder, kv_cache_dtype=dtype, **limits)) for dtype in ("auto", "fp8")
    }
    tokens = {dtype: engine.info.limits.kv_tokens for dtype, engine in engines.items()}
    assert 3.5 < tokens["fp8"] / tokens["auto"] < 4.5
    assert engines["auto"].info.settings()["kv_cache_dtype"] == "float32"
    info = engines["fp8"].info
    assert f"kv_tokens={tokens['fp8']}" in info.describe()
    assert "kv_cache_dtype=float8_e4m3fn" in info.describe() and "attention=torch" in info.describe()
    assert "the C++ kernels do not take an FP8 KV cache" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-dtype auto"):
        EngineConfig(batch_invariant=True, dtype="bf16", kv_cache_dtype="fp8")


def test_older_gpus_cannot_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, capability = torch.device("cuda"), [(8, 6)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    assert resolve.resolve_cache_dtype("auto", torch.bfloat16, gpu) == torch.bfloat16
    with pytest.raises(ConfigError, match=r"8\.9 or later, and this one has 8\.6; use"):
        resolve.resolve_cache_dtype("fp8", torch.bfloat16, gpu)
    capability[0] = (9, 0)
    assert resolve.resolve_cache_dtype("fp8", torch.bfloat16, gpu) == E4M3
