"""A GPT-2 folder made by transformers, with weights large enough that answers vary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel


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
