"""A Llama in GGUF as a Hugging Face folder: the numbers that the blocks stand for, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rosemodels.files import write_json

#: GGUF's name of a tensor within a layer, and transformers'.
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert(file: Path, folder: Path) -> None:
    """Write config, weights, chat template and tokenizer (byte-level BPE, digits one by one)."""
    reader = gguf.GGUFReader(file)
    about = {name: field.contents() for name, field in reader.fields.items()}
    tensors = dict(_tensors(reader, about))
    write_json(folder / "config.json", _config(about, tied="lm_head.weight" not in tensors))
    write_json(folder / "generation_config.json", _special(about))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder, about)


def _config(about: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    llama = {name.removeprefix("llama."): value for name, value in about.items()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": llama["vocab_size"],
        "max_position_embeddings": llama["context_length"],
        "num_hidden_layers": llama["block_count"],
        "hidden_size": llama["embedding_length"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "head_dim": llama["rope.dimension_count"],
        "intermediate_size": llama["feed_forward_length"],
        "hidden_act": "silu",
        "rms_norm_eps": float(f"{llama['attention.layer_norm_rms_epsilon']:g}"),
        "rope_theta": llama["rope.freq_base"],
        "attention_bias": False,
        "tie_word_embeddings": tied,
        "dtype": "float32",
        **_special(about),
    }


def _special(about: dict[str, Any]) -> dict[str, int]:
    return {f"{name}_token_id": about[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}


def _tensors(reader: gguf.GGUFReader, about: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        block, _, rest = tensor.name.partition(".")
        if block != "blk":
            yield f"{_OTHERS[block]}.weight", values
            continue
        layer, part, _ = rest.split(".")
        if part in heads:  # GGUF turns neighbouring elements together, transformers the two halves
            count, width = about[heads[part]], values.shape[1]
            values = values.reshape(count, -1, 2, width).swapaxes(1, 2).reshape(-1, width)
        yield f"model.layers.{layer}.{LAYER[part]}.weight", np.ascontiguousarray(values)


def _write_tokenizer(folder: Path, about: dict[str, Any]) -> None:
    words, kinds = about["tokenizer.ggml.tokens"], about["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in about["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({word: id for id, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [word for word, kind in zip(words, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": about["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "chat_template": about["tokenizer.chat_template"],
            **{f"{to}_token": words[about[f"tokenizer.ggml.{of}_token_id"]] for of, to in names.items()},
        },
    )
