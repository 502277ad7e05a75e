"""The engine in this process: order, parameters, refusals, and models of the hub."""

from __future__ import annotations

import fnmatch
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from roseinfer.batch import Ints
from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.fetched import Fetched
from roseinfer.llm import LLM
from roseinfer.model_folder import model_folder
from roseinfer.request.params import RequestError, SamplingParams
from tests.roseinfer.conftest import config_of

PROMPTS = [[5, 6, 7], [9] * 40, [11]]


@pytest.fixture(scope="module")
def llm(gpt2_folder: Path) -> LLM:
    return LLM(config_of(gpt2_folder, kv_tokens=512))


def test_answers_stand_in_the_order_of_prompts(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (9, 1, 4)]
    answers = llm.generate(PROMPTS, params)
    assert [len(answer) for answer in answers] == [9, 1, 4]
    assert answers == [llm.generate([p], how)[0] for p, how in zip(PROMPTS, params, strict=True)]
    assert llm.generate([], SamplingParams(max_tokens=1)) == []
    assert llm.generate((prompt for prompt in PROMPTS), params) == answers
    llm.engine.check_idle()


def test_what_does_nothing_here_is_reported_as_off(llm: LLM) -> None:
    config, info = EngineConfig(), llm.engine.info
    assert config.fused_ops and config.pinned_staging and config.decode_parts and config.cuda_graph
    assert "cuda_graph=() fused_ops=False pinned_staging=False decode_parts=()" in info.describe()


def test_each_prompt_of_a_list_is_answered_as_alone(llm: LLM) -> None:
    seeds = (2**64 - 1, 0, 1)
    each = [SamplingParams(max_tokens=12, temperature=1.0, seed=seed, ignore_eos=True) for seed in seeds]
    for params in each:
        assert llm.generate(PROMPTS, params) == [llm.generate([prompt], params)[0] for prompt in PROMPTS]
    answers = llm.generate([PROMPTS[0]] * 3, each)
    assert len({tuple(answer) for answer in answers}) == 3
    assert answers == [llm.generate([PROMPTS[0]], params)[0] for params in each]


def test_calls_of_several_threads(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other: a step lets other threads run before it ends."""
    params, step = SamplingParams(max_tokens=6, ignore_eos=True), llm.engine.step
    expected = [llm.generate([prompt], params) for prompt in PROMPTS]

    def slow() -> Any:
        time.sleep(0.001)
        return step()

    monkeypatch.setattr(llm.engine, "step", slow)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert [*pool.map(lambda prompt: llm.generate([prompt], params), PROMPTS)] == expected
    llm.engine.check_idle()


def test_a_request_waits_since_it_was_submitted(llm: LLM) -> None:
    """The time counts from the submission; the engine takes requests only between two steps."""
    llm.engine.submit(0, np.array(PROMPTS[0], dtype=np.int32), SamplingParams(1), time.monotonic() - 40)
    step = llm.engine.step()
    assert step is not None and 40 <= step.finished[0].queue_wait < 80
    assert step.finished[0].prefill < 40


@pytest.mark.parametrize("overlap", [False, True])
def test_ctrl_c_leaves_an_engine_that_works(gpt2_folder, monkeypatch, overlap):
    """It comes while the host waits for the device, as mostly on a GPU. The cache is too small for all."""
    llm = LLM(config_of(gpt2_folder, kv_tokens=128, overlap_schedule=overlap))
    prompts, how = [[5 + i] * 20 for i in range(4)], SamplingParams(60, ignore_eos=True)
    expected = llm.generate(prompts, how)
    wait, steps = Fetched.tokens, iter(range(100))

    def tokens(self: Fetched) -> Ints:
        if next(steps) == 5:
            signal.raise_signal(signal.SIGINT)
        return wait(self)

    monkeypatch.setattr(Fetched, "tokens", tokens)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, how)
    assert next(steps) < 10
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert llm.generate(prompts, how) == expected
    llm.engine.check_idle()


def test_a_refused_prompt_leaves_nothing(llm: LLM) -> None:
    with pytest.raises(RequestError):
        llm.generate([PROMPTS[0], [1] * 400], [SamplingParams(5), SamplingParams(200)])
    assert not llm.engine.has_work
    llm.engine.check_idle()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_model_len": 1025}, {"max_model_len": 2},
        {"kv_tokens": 16}, {"kv_tokens": 10**14}, {"kv_tokens": 2, "block_size": 1},
        {"block_size": 0}, {"threads": 0}, {"max_active_requests": 0}, {"prefill_max_tokens": 0},
    ],
)  # fmt: skip
def test_settings_that_cannot_work(gpt2_folder: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LLM(config_of(gpt2_folder, **({"kv_tokens": None} | settings)))


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("device", "gpu", "auto, cuda or cpu"), ("dtype", "bfloat16", "auto, fp16, bf16 or fp32"),
        ("quantization", "none", "fp8 or None"), ("quantization", "int8", "fp8 or None"),
        ("kv_cache_dtype", "bf16", "auto or fp8"), ("admission_policy", "lifo", "fifo or pack"),
        ("prefill_backend", "xx", "auto, auto2, .* triton or None"), ("block_size", "16", "a whole number"),
        ("kv_tokens", 1e3, "a whole number or None"), ("kv_tokens", True, "a whole number or None"),
        ("spin_ms", "1", "a number or None"), ("cuda_graph", "off", "True or False"), ("model", 7, "a text"),
    ],
)  # fmt: skip
def test_settings_of_another_kind(name: str, value: Any, choices: str) -> None:
    option = f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=f"^{option} must be {choices}, not {value!r}$"):
        EngineConfig(**{name: value})


def test_what_is_no_setting_and_no_prompt(llm: LLM) -> None:
    folder: Any = "folder"
    with pytest.raises(ConfigError, match="LLM takes an EngineConfig, not 'folder'"):
        LLM(folder)
    wrong: Any
    for wrong, shown in (([1, 2, 3], "1"), (["hi"], "'hi'"), ("hi", "'h'"), ([None], "None")):
        with pytest.raises(RequestError, match=f"a prompt is a list of token ids, not {shown}$"):
            llm.generate(wrong, SamplingParams(2))
    with pytest.raises(RequestError, match="3 prompts and 2 SamplingParams: give one for all prompts"):
        llm.generate(PROMPTS, [SamplingParams(2)] * 2)
    llm.engine.check_idle()


def test_the_shortest_context(gpt2_folder: Path) -> None:
    short = LLM(config_of(gpt2_folder, max_model_len=3, kv_tokens=64, warmup=True))
    (answer,) = short.generate([[1]], SamplingParams(2, ignore_eos=True))
    assert len(answer) == 2


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"max_active_requests": 1, "max_model_len": 100}, 100),
        ({"kv_tokens": 100, "max_model_len": 100}, 100),
        ({"kv_tokens": 8, "max_model_len": 8}, 8),
        ({"kv_tokens": 3, "block_size": 1}, 3),
    ],
)
def test_the_longest_request_fits_a_cache_of_its_length(gpt2_folder, settings, length):
    """Also where it ends within a block."""
    llm = LLM(config_of(gpt2_folder, warmup=True, **({"kv_tokens": None} | settings)))
    (answer,) = llm.generate([[1] * (length - 2)], SamplingParams(2, ignore_eos=True))
    assert len(answer) == 2
    llm.engine.check_idle()


def test_what_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All that is read here, and no weights in other formats."""
    fetched: list[str] = []

    def snapshot_download(model: str, *, allow_patterns: list[str]) -> str:
        names = [
            "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
            "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "chat_template.jinja",
            "pytorch_model.bin", "tf_model.h5", "model.gguf",
        ]  # fmt: skip
        fetched.extend(name for pattern in allow_patterns for name in fnmatch.filter(names, pattern))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert model_folder("some/model") == tmp_path
    assert len(fetched) == 9 and "chat_template.jinja" in fetched


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError("no network\nmore"), "no network"), (TimeoutError(), "TimeoutError")]
)
def test_why_it_is_not_fetched(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    """In one line, also where the client's error has no message."""

    def snapshot_download(model: str, **settings: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ConfigError, match=rf"'some/model', and the hub did not give it: {reason}$"):
        model_folder("some/model")
