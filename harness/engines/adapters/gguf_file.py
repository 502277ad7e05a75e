"""Converts a model's folder to one GGUF file for llama.cpp: the same numbers, in the wanted dtype.

It converts dense decoders of the GPT-2, Llama and Qwen families with byte-level BPE; llama.cpp's
convert_hf_to_gguf.py converts more. Norms, biases and position embeddings stay float32, as llama.cpp needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf.utility import LocalTensor, SafetensorsLocal
from numpy.typing import NDArray

from harness.errors import EngineError
from harness.files import whole_file

Floats = NDArray[np.float32]

_ARCHITECTURES = {
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
_TYPES = {
    "fp32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "fp16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}
#: GPT-2 stores these matrices as [in, out]; GGUF stores [out, in].
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
#: Causal masks of GPT-2, which are not weights.
_MASKS = (".attn.bias", ".attn.masked_bias")


def write_gguf(model: Path, dtype: Literal["fp16", "bf16", "fp32"], path: Path) -> None:
    """Convert the model of a folder in Hugging Face layout; the file is written atomically.

    Raises:
        EngineError: the model or its tokenizer is of a kind that is not supported, or a file is not JSON.
    """
    config = _content(model / "config.json")
    _check(model, config)
    matrices, kind = _TYPES[dtype]
    with whole_file(path) as partial:
        writer = gguf.GGUFWriter(partial, config["model_type"])
        writer.add_file_type(kind)
        try:
            _add_shape(writer, config)
        except KeyError as error:
            raise _unsupported(model, f"no {error.args[0]} in its config.json") from None
        layers = _first(config, "num_hidden_layers", "n_layer")
        names = gguf.get_tensor_name_map(_ARCHITECTURES[config["model_type"]], layers)
        _add_tokenizer(writer, model, config)
        for hf_name, values in _tensors(model, config):
            name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
            if name is None:
                raise _unsupported(model, f"a tensor {hf_name}")
            exact = values.ndim == 1 or name.startswith("position_embd")
            dtype_of = gguf.GGMLQuantizationType.F32 if exact else matrices
            writer.add_tensor(name, gguf.quants.quantize(values, dtype_of), raw_dtype=dtype_of)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise EngineError(f"{path} is not JSON: {error}", "correct that file") from None


def _unsupported(model: Path, what: str) -> EngineError:
    return EngineError(
        f"{model} has {what}, which bench cannot convert to GGUF",
        "put a file from llama.cpp's convert_hf_to_gguf.py into that folder, or leave out this engine",
    )


def _check(model: Path, config: dict[str, Any]) -> None:
    """Check the config. Raises EngineError for settings that the file would not have."""
    if config.get("model_type") not in _ARCHITECTURES:
        raise _unsupported(model, f"the model type {config.get('model_type')}")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (scaling := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise _unsupported(model, f"rope scaling {scaling}")
    if config.get("use_sliding_window"):
        raise _unsupported(model, "a sliding window")


def _first(config: dict[str, Any], *names: str) -> Any:
    """Return the first of these settings that is set. Raises KeyError where none is."""
    values = [config[name] for name in names if config.get(name) is not None]
    if not values:
        raise KeyError(names[0])
    return values[0]


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    width, heads = _first(config, "hidden_size", "n_embd"), _first(config, "num_attention_heads", "n_head")
    writer.add_block_count(_first(config, "num_hidden_layers", "n_layer"))
    writer.add_context_length(_first(config, "max_position_embeddings", "n_positions"))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(config.get("intermediate_size") or config.get("n_inner") or 4 * width)
    writer.add_head_count(heads)
    if config["model_type"] == "gpt2":
        writer.add_layer_norm_eps(config.get("layer_norm_epsilon", 1e-5))
        return
    dim = config.get("head_dim") or width // heads
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    rope = {"rope_theta": 10_000.0, **config, **(config.get("rope_parameters") or {})}  # as transformers
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))


def _add_tokenizer(writer: gguf.GGUFWriter, model: Path, config: dict[str, Any]) -> None:
    """Write token ids and their texts. The splitting of text is GPT-2's, because prompts are sent as ids."""
    path = model / "tokenizer.json"
    if not path.exists():
        raise _unsupported(model, "no tokenizer.json")
    content = _content(path)
    bpe, size = content["model"], config["vocab_size"]
    if bpe["type"] != "BPE" or bpe.get("byte_fallback"):
        raise _unsupported(model, "a tokenizer other than byte-level BPE")
    if max((*bpe["vocab"].values(), *(added["id"] for added in content["added_tokens"]))) >= size:
        raise _unsupported(model, "a tokenizer with more tokens than the model")
    words, kinds = [f"[PAD{i}]" for i in range(size)], [gguf.TokenType.UNUSED] * size
    for word, token in bpe["vocab"].items():
        words[token], kinds[token] = word, gguf.TokenType.NORMAL
    for added in content["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        words[added["id"]], kinds[added["id"]] = added["content"], kind
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])
    writer.add_add_bos_token(False)
    ends = config.get("eos_token_id")
    for add, token in (
        (writer.add_bos_token_id, config.get("bos_token_id")),
        (writer.add_eos_token_id, ends[0] if isinstance(ends, list) else ends),
    ):
        if token is not None:
            add(token)
    file, settings = model / "chat_template.jinja", model / "tokenizer_config.json"
    about = _content(settings) if settings.exists() else {}
    if template := file.read_text() if file.exists() else about.get("chat_template"):
        writer.add_chat_template(template)


def _tensors(model: Path, config: dict[str, Any]) -> Iterator[tuple[str, Floats]]:
    """Yield every weight with its Hugging Face name, in llama.cpp's layout."""
    kind, heads = config["model_type"], config.get("num_attention_heads", 0)
    for file in sorted(model.glob("*.safetensors")):
        with SafetensorsLocal(file) as tensors:
            for name, tensor in tensors.items():
                if kind == "gpt2" and name.endswith(_MASKS):
                    continue
                values = _values(tensor)
                if kind == "gpt2" and name.endswith(_TRANSPOSED):
                    values = np.ascontiguousarray(values.T)
                if kind == "llama" and ".q_proj." in name:
                    values = _interleaved(values, heads)
                if kind == "llama" and ".k_proj." in name:
                    values = _interleaved(values, config.get("num_key_value_heads") or heads)
                yield name, values


def _values(tensor: LocalTensor) -> Floats:
    """Return the tensor as float32, whatever its dtype in the file."""
    if tensor.dtype not in ("F32", "F16", "BF16"):
        raise EngineError(f"weights of type {tensor.dtype} cannot be written as GGUF", "leave out llamacpp")
    kind = gguf.GGMLQuantizationType[tensor.dtype]
    values: Floats = gguf.quants.dequantize(tensor.mmap_bytes(), kind)
    return values.reshape(tensor.shape)


def _interleaved(values: Floats, heads: int) -> Floats:
    """Put the rows of queries or keys, (heads × dim, …), in llama.cpp's order: RoPE rotates neighbours."""
    rest = values.shape[1:]
    return np.ascontiguousarray(values.reshape(heads, 2, -1, *rest).swapaxes(1, 2).reshape(-1, *rest))
