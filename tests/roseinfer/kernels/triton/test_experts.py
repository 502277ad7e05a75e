"""The choice of experts for many rows, against PyTorch's operators."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.kernels.triton.experts import route
from roseinfer.models.config import Mixture
from roseinfer.models.fp8 import Fp8Linear, quantize
from roseinfer.models.linear import Linear
from roseinfer.models.mlp import Experts, Mlp, Router
from roseinfer.models.mlp_cuda import CudaExperts
from roseinfer.models.ops import Ops
from tests.roseinfer.kernels.triton.conftest import DEVICE, close, draw, seeds


@settings(max_examples=3)
@given(
    seeds, st.integers(1, 80), st.sampled_from([(5, 2), (16, 16), (33, 4)]), st.booleans(), st.integers(1, 2)
)
def test_pairs_are_in_the_order_of_the_experts(seed, rows, sizes, normalized, parts):
    """Each program has pairs of one expert, and all programs together have every pair once."""
    (experts, top_k), height = sizes, 4
    logits = draw(seed, parts, rows, experts) * 3
    tokens = torch.full((experts,), 7, dtype=torch.int64, device=DEVICE)
    routed = route(logits, tokens, top_k, height, normalized=normalized)
    weights, chosen = logits.sum(0).softmax(-1).topk(top_k, -1)
    if normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    assert torch.equal(tokens - 7, chosen.flatten().bincount(minlength=experts))
    scattered = torch.zeros(rows, experts, device=DEVICE)
    pairs = []
    for expert, first, end in routed.blocks.tolist():
        of_block = list(range(first, min(first + height, end))) if expert >= 0 else []
        assert (expert < 0) == (not of_block)
        pairs += of_block
        scattered[routed.rows[of_block].long(), expert] = routed.weights[of_block]
    assert pairs == list(range(rows * top_k))
    close(scattered, torch.zeros_like(scattered).scatter_(1, chosen, weights))
    assert torch.equal(
        routed.rows[routed.places.long()], torch.arange(rows, device=DEVICE)[:, None].expand(-1, top_k)
    )


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows: Triton's interpreter truncates where a GPU rounds."""
    rows = quantize(x)
    return rows.values, rows.scales


@pytest.mark.parametrize(("seed", "rows"), [(1, 1), (2, 20)])
def test_experts_in_8_bit_floats(seed: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roseinfer.kernels.triton.experts.round_rows", rounded)
    experts, top_k, width, ffn = 5, 2, 64, 32
    mixture = Mixture(experts, top_k, ffn, True, frozenset({0}))
    parts = [(draw(seed + e, 2 * ffn, width) / 8, draw(seed - e, width, ffn) / 8) for e in range(experts)]
    fused = CudaExperts(Router(Linear(draw(seed, experts, width), None), mixture), mixture, parts, eight=True)
    reference = Experts(
        fused.router, (Mlp(Fp8Linear(a.cpu(), None), Fp8Linear(b.cpu(), None), Ops()) for a, b in parts)
    )
    x = draw(seed + 9, rows, width)
    made = x.clone()
    fused.add_norm_(made, x, torch.ones(width, device=DEVICE), 1e-6)
    expected = reference(x.cpu())
    assert ((made - x).cpu() - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
def test_a_row_of_padding_has_a_choice_whatever_is_in_it(garbage: float):
    """A graph computes rows that nobody filled; one without a choice would leave its places unwritten."""
    logits = torch.zeros(1, 3, 16, device=DEVICE)
    logits[0, 1] = garbage
    routed = route(logits, torch.zeros(16, dtype=torch.int64, device=DEVICE), 4, 8, normalized=True)
    assert sorted(routed.places.flatten().tolist()) == list(range(12))
    assert routed.weights.isfinite().all()


def test_rows_that_are_no_numbers_have_experts_too() -> None:
    """Padding is such: the sum of its pairs must find them."""
    logits, tokens = torch.full((1, 3, 5), torch.nan, device=DEVICE), torch.zeros(5, dtype=torch.int64)
    routed = route(logits, tokens.to(DEVICE), 2, 4, normalized=True)
    assert sorted(routed.places.flatten().tolist()) == list(range(6))
