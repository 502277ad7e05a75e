"""The LM head: tied to the embeddings or stored, as transformers reads the same folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedConfig, Qwen2Config

from roseinfer.llm import LLM
from roseinfer.models.load import load
from roseinfer.models.shard import Shard
from roseinfer.request.params import SamplingParams
from tests.roseinfer.conftest import config_of

VOCAB, WIDTH, PROMPT, NEW_TOKENS = 61, 64, [1, 2, 3], 8
COMMON: dict[str, Any] = {"vocab_size": VOCAB, "eos_token_id": None, "bos_token_id": None}
LLAMA: dict[str, Any] = COMMON | {
    "hidden_size": WIDTH, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
    "num_hidden_layers": 1, "max_position_embeddings": 96,
}  # fmt: skip
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**LLAMA),
    "qwen2": Qwen2Config(**LLAMA),
    "gpt2": GPT2Config(**COMMON, n_embd=WIDTH, n_layer=1, n_head=4, n_positions=96),
}
TABLES = {"llama": "model.embed_tokens.weight", "gpt2": "transformer.wte.weight"}
CPU = torch.device("cpu")


def save(folder: Path, family: str, *, tied: bool, says_tied: bool) -> Path:
    """A model whose config may say something else of its head."""
    torch.manual_seed(1)
    config = FAMILIES[family]
    config.tie_word_embeddings = tied
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"tie_word_embeddings": says_tied}))
    return folder


def answers(folder: Path) -> tuple[list[int], list[int]]:
    """Greedy tokens of roseinfer and of transformers."""
    llm = LLM(config_of(folder, kv_tokens=96, threads=1))
    (answer,) = llm.generate([PROMPT], SamplingParams(NEW_TOKENS, ignore_eos=True))
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    made = peer.generate(
        torch.tensor([PROMPT]), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    return answer, made[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("tied", "says_tied", "warns"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_answers_are_those_of_transformers(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    family: str,
    tied: bool,
    says_tied: bool,
    warns: bool,
) -> None:
    answer, expected = answers(save(tmp_path, family, tied=tied, says_tied=says_tied))
    assert answer == expected
    assert ("lm_head.weight differs" in caplog.text) == warns


@pytest.mark.parametrize("family", TABLES)
@pytest.mark.parametrize("both", [False, True])
def test_a_tied_head_that_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str, both: bool
) -> None:
    """Beside an equal table, or instead of it."""
    file = save(tmp_path, family, tied=True, says_tied=True) / "model.safetensors"
    stored = load_file(file)
    stored["lm_head.weight"] = stored[TABLES[family]].clone()
    if not both:
        del stored[TABLES[family]]
    save_file(stored, file, {"format": "pt"})
    answer, expected = answers(tmp_path)
    assert answer == expected and "lm_head.weight" not in caplog.text
    head = stored["lm_head.weight"]
    for rank, rows in enumerate((head[:31], head[31:])):
        model: Any = load(str(tmp_path), CPU, torch.float32, packed=False, shard=Shard(rank, 2))
        assert torch.equal(model._tokens, rows) and torch.equal(model._head.weight, rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_have_rows_of_a_head_that_differs(tmp_path: Path, family: str) -> None:
    stored = load_file(save(tmp_path, family, tied=False, says_tied=True) / "model.safetensors")
    head = stored["lm_head.weight"]
    for rank, rows in enumerate((head[:31], head[31:])):
        model: Any = load(str(tmp_path), CPU, torch.float32, packed=False, shard=Shard(rank, 2))
        assert torch.equal(model._head.weight, rows)
        assert not torch.equal(model._tokens, rows)
