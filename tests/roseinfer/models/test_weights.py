"""Weights: the head, tied or stored, as transformers reads it, and the parts that ranks have."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedConfig, Qwen2Config

from roseinfer.config import ConfigError
from roseinfer.llm import LLM
from roseinfer.models import config
from roseinfer.models.config import ModelConfig
from roseinfer.models.load import load, shard_config
from roseinfer.models.shard import Shard
from roseinfer.models.weights import ShardWeights, Weights
from roseinfer.request.params import SamplingParams
from rosemodels import llama
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


def ranks_of(folder: Path, head: torch.Tensor) -> list[tuple[Any, torch.Tensor]]:
    """The models of two ranks, each with its rows of a head."""
    shards = zip((Shard(0, 2), Shard(1, 2)), (head[:31], head[31:]), strict=True)
    return [
        (load(str(folder), CPU, torch.float32, packed=False, shard=shard), rows) for shard, rows in shards
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("tied", "says_tied", "warns"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_answers_are_those_of_transformers(tmp_path, caplog, family, tied, says_tied, warns):
    """Ranks have the rows of a head that differs from its table."""
    stored = load_file(save(tmp_path, family, tied=tied, says_tied=says_tied) / "model.safetensors")
    answer, expected = answers(tmp_path)
    assert answer == expected
    assert ("lm_head.weight differs" in caplog.text) == warns
    for model, rows in ranks_of(tmp_path, stored["lm_head.weight"]) if warns else ():
        assert torch.equal(model._head.weight, rows) and not torch.equal(model._tokens, rows)


@pytest.mark.parametrize("family", TABLES)
@pytest.mark.parametrize("both", [False, True])
def test_a_tied_head_that_is_stored(tmp_path, caplog, family, both):
    """Beside an equal table, or instead of it."""
    file = save(tmp_path, family, tied=True, says_tied=True) / "model.safetensors"
    stored = load_file(file)
    stored["lm_head.weight"] = stored[TABLES[family]].clone()
    if not both:
        del stored[TABLES[family]]
    save_file(stored, file, {"format": "pt"})
    answer, expected = answers(tmp_path)
    assert answer == expected and "lm_head.weight" not in caplog.text
    for model, rows in ranks_of(tmp_path, stored["lm_head.weight"]):
        assert torch.equal(model._tokens, rows) and torch.equal(model._head.weight, rows)


GPT2 = {"model_type": "gpt2", "n_embd": 48, "n_head": 6, "n_layer": 1, "vocab_size": 101}
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 101, "max_position_embeddings": 64,
}  # fmt: skip
#: Their tensors, by what a layer's parts are called.
SHAPES = {
    "gpt2": {"h.0.attn.c_attn.weight": (48, 144), "h.0.attn.c_attn.bias": (144,), "wte.weight": (101, 48)},
    "qwen2": {
        "q_proj.weight": (64, 64), "k_proj.bias": (16,), "o_proj.weight": (64, 64),
        "up_proj.weight": (48, 64), "down_proj.weight": (64, 48), "lm_head.weight": (101, 64),
    },
}  # fmt: skip


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 8), st.integers(1, 300))
def test_ranks_have_everything_once(ranks: int, heads: int, ffn: int, vocab: int) -> None:
    """All but the norms: neither a gap nor, with enough heads of keys and values, an element twice."""
    whole = replace(
        config.parse(QWEN2), heads=heads * ranks, kv_heads=ranks, ffn_width=ffn * ranks, vocab_size=vocab
    )
    shards = [Shard(rank, ranks) for rank in range(ranks)]
    for pattern, cut in shards[0].cuts(whole).items():
        taken = [
            element
            for shard in shards
            for start, end in shard.cuts(whole)[pattern].ranges
            for element in range(start, end)
        ]
        assert sorted(taken) == list(range(cut.size)), pattern


def test_heads_of_keys_are_shared_by_neighbours() -> None:
    """With two of them on four ranks; queries go with the keys that they look at."""
    whole = config.parse(QWEN2)
    cuts = [Shard(rank, 4).cuts(whole) for rank in range(4)]
    keys = [cut[r"[kv]_proj\.(weight|bias)"].ranges for cut in cuts]
    assert keys == [((0, 8),), ((0, 8),), ((8, 16),), ((8, 16),)]
    assert Shard(3, 4).config(whole).kv_heads == 1 and Shard(3, 4).config(whole).heads == 2


@pytest.mark.parametrize("raw", [GPT2, QWEN2], ids=["gpt2", "qwen2"])
def test_parts_of_files_make_the_whole(raw: dict[str, object], tmp_path: Path) -> None:
    whole = config.parse(raw)
    torch.manual_seed(0)
    shapes = SHAPES[whole.family]
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    for name, shape in shapes.items():
        parts = []
        for rank in range(2):
            shard = Shard(rank, 2)
            cut = shard.cut(name, whole)
            part_shape = list(shape)
            if cut.size != whole.vocab_size:
                part_shape[cut.dim] //= 2
            parts.append(ShardWeights(tmp_path, shard, whole).get(name, tuple(part_shape)))
        if "c_attn" in name:  # queries, keys and values of a rank are side by side
            thirds = [part.chunk(3, -1) for part in parts]
            parts = [torch.cat([third[i] for third in thirds], -1) for i in range(3)]
        assert torch.equal(torch.cat(parts, cut.dim), stored[name]), name


def test_a_bias_of_a_sum_is_added_once(tmp_path: Path) -> None:
    save_file({"o_proj.bias": torch.ones(64)}, tmp_path / "model.safetensors")
    whole = config.parse(QWEN2)
    biases = [ShardWeights(tmp_path, Shard(rank, 2), whole).get("o_proj.bias", (64,)) for rank in range(2)]
    assert torch.equal(biases[0], torch.ones(64)) and not biases[1].any()


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_checkpoints_of_the_base_class(tmp_path: Path, prefix: str) -> None:
    """They have no prefix: names of a whole model and of a rank's shard."""
    name, stored = "model.layers.0.self_attn.q_proj.weight", torch.randn(64, 64)
    save_file({prefix + name.removeprefix("model."): stored}, tmp_path / "model.safetensors")
    assert torch.equal(Weights(tmp_path).get(name, (64, 64)), stored)
    shard = ShardWeights(tmp_path, Shard(1, 2), config.parse(QWEN2))
    assert torch.equal(shard.get(name, (32, 64)), stored[32:])


def test_experts_one_by_one_or_stacked(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Stacked in several files of an index; the parts of two ranks are halves of both projections."""
    folder = model_folder("qwen3_moe")
    stored = load_file(folder / "model.safetensors")
    for layer in (0, 2):
        at = f"model.layers.{layer}.mlp.experts"
        parts = [
            [stored.pop(f"{at}.{e}.{part}_proj.weight") for e in range(12)] for part in ("gate", "up", "down")
        ]
        gates, ups, downs = map(torch.stack, parts)
        stored |= {f"{at}.gate_up_proj": torch.cat((gates, ups), 1), f"{at}.down_proj": downs}
    names = sorted(stored)
    files = {name: f"{index % 2}.safetensors" for index, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: stored[name] for name in names if files[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    for layer in (0, 2):
        for rank in (None, 0, 1):
            shard = None if rank is None else Shard(rank, 2)
            models: list[Any] = [
                load(str(each), CPU, torch.float32, packed=False, shard=shard) for each in (folder, tmp_path)
            ]
            single, stacked = (model._layers[layer].mlp.mlps for model in models)
            for *mlps, gate_up, down in zip(
                single, stacked, stored[f"model.layers.{layer}.mlp.experts.gate_up_proj"],
                stored[f"model.layers.{layer}.mlp.experts.down_proj"], strict=True,
            ):  # fmt: skip
                if rank is not None:
                    gate_up = torch.cat([half.chunk(2)[rank] for half in gate_up.chunk(2)])
                    down = down.chunk(2, 1)[rank]
                for mlp in mlps:
                    assert torch.equal(mlp.gate_up.weight, gate_up) and torch.equal(mlp.down.weight, down)


def test_weights_that_no_file_has_are_drawn(tmp_path: Path) -> None:
    """The same every time, as the config says; ranks would each draw others."""
    shape = replace(llama.SHAPES["qwen3-moe-tiny"], layers=1, vocab_size=300, stored=False)
    llama.write(tmp_path, shape)
    models: list[Any] = [load(str(tmp_path), CPU, torch.float32, packed=False) for _ in range(2)]
    first, again = (torch.cat([mlp.gate_up.weight for mlp in m._layers[0].mlp.mlps]) for m in models)
    assert torch.equal(first, again) and first.std() == pytest.approx(0.1, rel=0.01)
    assert models[0]._tokens.std() == pytest.approx(0.02, rel=0.02) and (models[0]._norm == 1).all()
    with pytest.raises(ConfigError, match="needs the weights"):
        load(str(tmp_path), CPU, torch.float32, shard=Shard(0, 2))


@pytest.mark.parametrize("ranks", [3, 5, 16])
def test_a_model_that_does_not_divide(ranks: int) -> None:
    whole: ModelConfig = config.parse(QWEN2)
    with pytest.raises(ConfigError, match="does not divide the model's 8 heads"):
        Shard(0, ranks).config(whole)


def test_a_mixture_that_does_not_divide() -> None:
    moe = QWEN2 | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}
    whole = config.parse(moe | {"moe_intermediate_size": 9})
    with pytest.raises(ConfigError, match="the 9 elements of each expert"):
        Shard(0, 2).config(whole)
    with pytest.raises(ConfigError, match="on CPUs only"):
        shard_config(whole, Shard(0, 2), torch.device("cuda"))


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    save_file({"q_proj.weight": torch.zeros(48, 64)}, tmp_path / "model.safetensors")
    weights = ShardWeights(tmp_path, Shard(1, 2), config.parse(QWEN2))
    with pytest.raises(ConfigError, match=r"has shape \(48, 64\), the config says \(64, 64\)"):
        weights.get("q_proj.weight", (32, 64))
    with pytest.raises(ConfigError, match="no tensor k_proj"):
        weights.get("k_proj.weight", (8, 64))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_a_quantized_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    """Numbers without their scales would be another model's."""
    save_file({"q_proj.weight": torch.zeros(64, 64).to(dtype)}, tmp_path / "model.safetensors")
    weights = [Weights(tmp_path), ShardWeights(tmp_path, Shard(1, 2), config.parse(QWEN2))]
    for kind, rows in zip(weights, (64, 32), strict=True):
        with pytest.raises(ConfigError, match="is quantized"):
            kind.get("q_proj.weight", (rows, 64))
