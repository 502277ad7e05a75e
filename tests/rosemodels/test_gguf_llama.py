"""A model written as GGUF is read back unchanged."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rosemodels.gguf_llama import LAYER, convert

CHAT = "{{ messages[0]['content'] }}"
WORDS = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "11"]


def write_gguf(file: Path, model: LlamaForCausalLM) -> None:
    """Write a Llama like llama.cpp: neighbouring elements of a query's or key's head turn together."""
    config, state = model.config, model.state_dict()
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (len(WORDS) - 1)])
    writer.add_token_merges(["h e", "1 1"])
    for name in ("bos", "eos", "unk", "pad"):
        getattr(writer, f"add_{name}_token_id")(0)
    writer.add_chat_template(CHAT)
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for part, name in LAYER.items():
            values = state[f"model.layers.{layer}.{name}.weight"]
            if part in ("attn_q", "attn_k"):
                heads = values.view(-1, 2, config.head_dim // 2, values.shape[1])
                values = heads.transpose(1, 2).reshape(values.shape)
            writer.add_tensor(f"blk.{layer}.{part}.weight", values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_model_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    write_gguf(tmp_path / "model.gguf", model)
    convert(tmp_path / "model.gguf", tmp_path)
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        assert torch.equal(again(tokens).logits, model(tokens).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("he 11<|end|>").input_ids)
    assert pieces == ["he", "Ġ", "1", "1", "<|end|>"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    assert tokenizer.eos_token == "<|end|>"
