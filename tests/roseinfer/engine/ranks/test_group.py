"""An engine of several processes: real ones, on a CPU."""

from __future__ import annotations

import gc
import gzip
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3MoeConfig

from roseinfer.config import ConfigError, EngineConfig, RankError
from roseinfer.engine.load import LoadedModel, load_model
from roseinfer.engine.logprobs import PROMPT_ROWS
from roseinfer.engine.ranks.group import RankGroup
from roseinfer.llm import LLM
from roseinfer.models.fp8 import Fp8Linear
from roseinfer.models.linear import Linear
from roseinfer.models.load import load
from roseinfer.models.mlp import Mlp
from roseinfer.models.ops import Ops
from roseinfer.models.ranks import Ranks
from roseinfer.request.params import SamplingParams
from tests.roseinfer.conftest import VOCAB, config_of, runner_of, save_llama, traffic

pytestmark = pytest.mark.integration

ONE_THREAD = {"threads": 1, "kv_tokens": 4096}
#: More tokens than have their logits at once.
LONG = list(range(1, PROMPT_ROWS + 40))
#: Biases and a head of its own; experts, norms of queries and keys, one head of keys and values on two ranks.
SHAPES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(
        vocab_size=VOCAB, num_hidden_layers=2, hidden_size=96, intermediate_size=160, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, attention_bias=True, mlp_bias=True,
        tie_word_embeddings=False,
    ),
    "qwen3_moe": Qwen3MoeConfig(
        vocab_size=VOCAB, num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=1024, num_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True, mlp_only_layers=[0],
        tie_word_embeddings=True,
    ),
}  # fmt: skip


@contextmanager
def opened(folder: Path, ranks: int = 2, **settings: Any) -> Iterator[LLM]:
    """An engine; its ranks are gone after it."""
    llm = LLM(config_of(folder, tensor_parallel_size=ranks, **(ONE_THREAD | settings)))
    before = {process.pid for process in children()}
    yield llm
    llm.engine.close()
    assert not before & {process.pid for process in children()}


def children() -> list[psutil.Process]:
    """Ranks that this process has started."""
    return [
        child
        for child in psutil.Process().children()
        if any("engine.ranks.follow" in part for part in child.cmdline())
    ]


#: Prompts of 1 to 264 tokens, some alike; answers that end one by one.
PROMPTS, PARAMS = zip(
    *traffic(1, 12, [0, 64], [1, 16, 17, *range(20, 200)], max_tokens=range(1, 16)), strict=True
)


@cache
def of_one_process(folder: Path) -> tuple[list[list[int]], list[float]]:
    """Answers to all prompts, and logprobs of a long one."""
    with opened(folder, 1) as alone:
        return alone.generate(PROMPTS, PARAMS), logprobs(alone, LONG)


def test_tokens_equal_those_of_one_process(gpt2_folder: Path, tmp_path: Path) -> None:
    """Also with prompts in parts, a prefix cache, and requests that lose their blocks; ranks can be profiled;
    one that is lost ends the engine, with the reason."""
    tight = {"kv_tokens": 560, "block_size": 4, "chunked_prefill_size": 48, "prefix_cache": True}
    expected, scores = of_one_process(gpt2_folder)
    with opened(gpt2_folder, **tight) as llm:
        np.testing.assert_allclose(logprobs(llm, LONG), scores, atol=1e-3)
        assert llm.generate(PROMPTS, PARAMS) == expected
        assert llm.engine.preemptions > 0 and llm.engine.cached_tokens > 0
        llm.engine.flush_cache()
        llm.engine.check_idle()
        assert profiled(llm, tmp_path) >= {
            "roseinfer.prefill_batch.model_forward", "roseinfer.model.forward.eager",
            "roseinfer.ranks.all_reduce", "roseinfer.ranks.gather",
        }  # fmt: skip
        (rank,) = children()
        rank.kill()
        with pytest.raises(RankError, match=r"rank 1 of the engine has ended \(killed by SIGKILL\)"):
            llm.generate(PROMPTS, PARAMS)


def test_each_rank_rounds_what_it_caches(gpt2_folder: Path) -> None:
    """A sum in another order can round a key to its neighbour, so not all answers need be the same. An engine
    that is forgotten leaves no process."""
    exact_answers, _ = of_one_process(gpt2_folder)
    answers = []
    for ranks in (1, 2):
        settings = {"kv_cache_dtype": "fp8", "prefix_cache": True, "tensor_parallel_size": ranks}
        llm = LLM(config_of(gpt2_folder, **ONE_THREAD, **settings))
        answers.append(llm.generate(PROMPTS, PARAMS))
        others = children()
        assert len(others) == ranks - 1
        del llm
        gc.collect()
        assert not any(rank.is_running() for rank in others)
    alone, shared = answers
    assert sum(a == b for a, b in zip(alone, shared, strict=True)) >= len(alone) - 2
    assert sum(a == b for a, b in zip(alone, exact_answers, strict=True)) < len(alone) - 2


class Halves(Linear):
    """A layer as two ranks have it: each rounds its half of the inputs, and of the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        first, second = weight.chunk(2, dim=1)
        self._parts = Fp8Linear(first, bias), Fp8Linear(second, None)

    def __call__(self, x: Tensor) -> Tensor:
        first, second = (part(half) for part, half in zip(self._parts, x.chunk(2, dim=1), strict=True))
        return first + second


def test_each_rank_rounds_its_weights_and_activations(tmp_path: Path) -> None:
    """A sum in another order can round an activation to its neighbour: few are."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(SHAPES["llama"]).save_pretrained(tmp_path)
    exact: Any = load(str(tmp_path), torch.device("cpu"), torch.float32, packed=False, cpu_kernels=False)
    prompt = list(range(1, 100))
    with opened(tmp_path, 1, quantization="fp8") as alone:
        whole = logprobs(alone, prompt)
        model = runner_of(alone.engine).model
        model._layers = [
            replace(layer, out=halves(plain.out), mlp=Mlp(layer.mlp.gate_up, halves(plain.mlp.down), Ops()))
            for layer, plain in zip(model._layers, exact._layers, strict=True)
        ]
        expected = logprobs(alone, prompt)
    with opened(tmp_path, quantization="fp8") as llm:
        on_ranks = logprobs(llm, prompt)
    off, apart = (np.abs(np.subtract(other, expected)[:300]).mean() for other in (on_ranks, whole))
    assert off < 1e-5 < 1e-3 < apart


def halves(whole: Linear) -> Halves:
    return Halves(whole.weight, whole.bias)


def profiled(llm: LLM, folder: Path) -> set[str]:
    """Names of what rank 1 does for a prompt and two tokens."""
    assert llm.engine.profile_ranks(str(folder / "roseinfer-7.trace.json.gz")) is None
    llm.generate([[1, 2, 3]], SamplingParams(2, ignore_eos=True))
    assert llm.engine.profile_ranks(None) is None
    (trace,) = folder.iterdir()
    assert trace.name == "roseinfer-7.rank1.trace.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return {event["name"] for event in events}


def wait_for_gpu(llm: LLM, fault: Callable[[psutil.Process], None], why: str) -> None:
    """Wait as for a GPU, which waits for a rank that has gone until it is given up: here an event."""
    released = threading.Event()

    class Own(Ranks):
        def give_up(self) -> None:
            released.set()

    group = llm.engine.group
    group.ranks, group._timeout_s = Own(), 1
    group.watch_waits()
    (rank,) = children()
    with pytest.raises(RankError, match=why), group.waited_for():
        fault(rank)
        assert released.wait(30)
    with pytest.raises(RankError, match=why), group.waited_for():
        raise AssertionError("nothing is awaited once a rank has ended")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "fault", "why"),
    [
        ("llama", psutil.Process.kill, r"rank 1 of the engine has ended \(killed by SIGKILL\)"),
        (
            "qwen3_moe",
            psutil.Process.suspend,
            r"waited 1 s for another rank of the engine \(rank 1 is stopped\)",
        ),
    ],
    ids=SHAPES,
)
def test_families(shape: str, fault: Callable[[psutil.Process], None], why: str, tmp_path: Path) -> None:
    """Logprobs, too, are those of one process. A wait for a rank that is killed or hangs ends."""
    save_llama(tmp_path, SHAPES[shape])
    with opened(tmp_path, 1) as alone, opened(tmp_path) as llm:
        assert llm.generate(PROMPTS, PARAMS) == alone.generate(PROMPTS, PARAMS)
        np.testing.assert_allclose(logprobs(alone, PROMPTS[5]), logprobs(llm, PROMPTS[5]), atol=1e-3)
        wait_for_gpu(llm, fault, why)


def logprobs(llm: LLM, prompt: list[int]) -> list[float]:
    """Logprobs of the prompt's tokens and of eight that follow, with two of the likeliest of each."""
    params = SamplingParams(8, ignore_eos=True, logprobs=2, prompt_logprobs=2)
    llm.engine.add(0, np.array(prompt, np.int32), params)
    values: list[float] = []
    while (step := llm.engine.step()) is not None:
        for part in (step.prompt_logprobs, step.logprobs):
            values += [] if part is None else part.values.ravel().tolist()
    return values


@pytest.mark.parametrize("received", [False, True])
def test_a_rank_that_ends_before_it_is_connected(gpt2_folder, monkeypatch, received):
    """It has loaded, and ends before it is sent what it is to do next, or before it has read that."""
    send = socket.send_fds

    def send_fds(sock: socket.socket, *message: Any) -> int:
        (rank,) = children()
        rank.suspend()
        sent = send(sock, *message) if received else 0
        rank.kill()
        hang_up = select.poll()
        hang_up.register(sock, 0)
        assert hang_up.poll(30_000)
        return sent or send(sock, *message)

    monkeypatch.setattr(socket, "send_fds", send_fds)
    ended = r"rank 1 of the engine has ended \(killed by SIGKILL\)"
    with pytest.raises(ConfigError, match=ended), opened(gpt2_folder):
        pass


def test_a_rank_that_hangs_while_it_loads(gpt2_folder, monkeypatch, caplog):
    for name, value in {"LOAD_S": 1.2, "LOAD_TIMES": 0, "END_S": 0}.items():
        monkeypatch.setattr(f"roseinfer.engine.ranks.group.{name}", value)

    def load_and_suspend(config: EngineConfig) -> LoadedModel:
        (rank,) = children()
        rank.suspend()
        return load_model(config)

    monkeypatch.setattr("roseinfer.engine.core.load_model", load_and_suspend)
    late = r"rank 1 of the engine has not loaded its part of the model"
    ends = rf"{late} within 1.2 s after rank 0 \(rank 1 is stopped\)"
    with pytest.raises(ConfigError, match=ends), opened(gpt2_folder, rank_timeout_s=1):
        pass
    assert f"{late}; rank 0 has waited 1 s, and waits 1.2 s at most (rank 1 is stopped)" in caplog.messages
    assert not children()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ranks": 3}, "does not divide the model's 4 heads"),
        ({"batch_invariant": True, "dtype": "bf16"}, "works without --batch-invariant"),
    ],
)
def test_what_cannot_work(gpt2_folder, monkeypatch, settings, why):
    """It is refused before a rank starts."""
    monkeypatch.setattr(RankGroup, "__init__", None)
    with pytest.raises(ConfigError, match=why), opened(gpt2_folder, **settings):
        pass
