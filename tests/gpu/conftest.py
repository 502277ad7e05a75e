"""Models that disagree with themselves when a computation is wrong, and what transformers makes of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.models.qwen3_5 import Qwen3_5TextConfig

VOCAB = 5003


def make_gpt2(path: Path, *, layers: int, width: int, heads: int) -> Path:
    """A random GPT-2 at `path` whose answers depend on its layers and positions."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=VOCAB))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("transformer.h.") and parameter.dim() == 2:
                parameter.mul_(6 * (128 / width) ** 0.5)
            if name == "transformer.wpe.weight":
                parameter.mul_(10)
    model.save_pretrained(path)
    return path


#: One of each family, in sizes that its kernels take.
LLAMAS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(
        vocab_size=VOCAB, num_hidden_layers=3, hidden_size=512, intermediate_size=768, num_attention_heads=8,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=1024, tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
        },
    ),
    "qwen2": Qwen2Config(
        vocab_size=VOCAB, num_hidden_layers=3, hidden_size=256, intermediate_size=512, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
    ),
    "qwen3": Qwen3Config(
        vocab_size=VOCAB, num_hidden_layers=3, hidden_size=512, intermediate_size=1024, num_attention_heads=8,
        num_key_value_heads=1, head_dim=128, max_position_embeddings=1024, tie_word_embeddings=True,
    ),
}  # fmt: skip


#: A mixture of experts.
MIXTURE = Qwen3MoeConfig(
    vocab_size=VOCAB, num_hidden_layers=3, hidden_size=512, intermediate_size=1024, num_attention_heads=8,
    num_key_value_heads=2, head_dim=128, max_position_embeddings=1024, tie_word_embeddings=True,
    num_experts=32, num_experts_per_tok=4, moe_intermediate_size=256, norm_topk_prob=True,
    mlp_only_layers=[1],
)  # fmt: skip

#: With states and heads of size 256.
HYBRID = Qwen3_5TextConfig(
    vocab_size=VOCAB, num_hidden_layers=4, hidden_size=512, intermediate_size=1024, num_attention_heads=4,
    num_key_value_heads=2, head_dim=256, max_position_embeddings=1024, tie_word_embeddings=True,
    linear_num_key_heads=4, linear_num_value_heads=8,
)  # fmt: skip


def make_llama(path: Path, name: str) -> Path:
    """A random model whose answers depend on its layers, gains and biases."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config((LLAMAS | {"mixture": MIXTURE, "hybrid": HYBRID})[name])
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.startswith("model.layers.") and parameter.dim() > 1:
                parameter.mul_(3)
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)
    return path


@cache
def reference(folder: Path) -> PreTrainedModel:
    """In float32 on the CPU."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(folder: Path, prompt: list[int], new_tokens: int) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens, and the logits before each of them, `[new_tokens, vocab]`, float32 on the CPU."""
    with torch.inference_mode():
        out = reference(folder).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)
