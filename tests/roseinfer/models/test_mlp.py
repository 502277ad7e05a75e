"""Mixtures of experts against transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from roseinfer.models.config import Mixture
from roseinfer.models.linear import Linear
from roseinfer.models.mlp import Experts, Mlp, Router, skew
from roseinfer.models.ops import Ops


@pytest.mark.parametrize("normalized", [False, True])
def test_a_mixture(normalized: bool) -> None:
    """A step without tokens has no result; those of all steps are counted."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=32, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        norm_topk_prob=normalized, _experts_implementation="eager",
    )  # fmt: skip
    block = Qwen3MoeSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    stacks = zip(block.experts.gate_up_proj.detach(), block.experts.down_proj.detach(), strict=True)
    router = Router(Linear(block.gate.weight.detach(), None), Mixture(6, 2, 16, normalized, frozenset()))
    experts = Experts(router, (Mlp(Linear(a, None), Linear(b, None), Ops()) for a, b in stacks))
    assert skew([experts]) == 0 == skew([])
    x, residual = torch.randn(2, 9, 32)
    with torch.inference_mode():
        expected = block(x[None])[0]
    torch.testing.assert_close(experts(x), expected)
    torch.testing.assert_close(experts.add(x, residual), residual + expected)
    assert experts(x[:0]).shape == (0, 32)
    chosen = router(x)[1].flatten().bincount(minlength=6)
    assert torch.equal(experts.tokens, 2 * chosen)
    assert skew([experts, experts]) == pytest.approx(float(chosen.max()) / 3)
