"""Kernels of mixtures of experts against PyTorch's operators in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roseinfer.e4m3 import E4M3
from roseinfer.models.config import Mixture
from roseinfer.models.fp8 import Fp8Linear, quantize
from roseinfer.models.linear import Linear
from roseinfer.models.mlp import Experts, Mlp, Router
from roseinfer.models.mlp_cuda import CudaExperts
from roseinfer.models.ops import Ops

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

EPS = 1e-6


class WideLinear(Linear):
    """Computes in float32."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.float() @ self.weight.float().t()


def wide_of(weight: Tensor) -> Tensor:
    rows = quantize(weight)
    return rows.values.float() * rows.scales


def draw(*shape: int, std: float = 1.0) -> Tensor:
    return torch.randn(shape, device="cuda") * std


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, E4M3], ids=str)
@pytest.mark.parametrize(
    ("experts", "top_k", "width", "ffn", "normalized"), [(128, 8, 2048, 768, True), (32, 3, 512, 256, False)]
)
@torch.inference_mode()
def test_kernels(experts, top_k, width, ffn, normalized, stored):
    """Both kernels, twice with the same result; experts are counted as they are chosen. In E4M3 the kernel
    for few rows rounds weights, the other one its inputs, too."""
    torch.manual_seed(0)
    eight, dtype = stored == E4M3, torch.bfloat16 if stored == E4M3 else stored
    mixture, std = Mixture(experts, top_k, ffn, normalized, frozenset({0})), width**-0.5
    router, gain = draw(experts, width, std=2 * std).to(dtype), (1 + draw(width, std=0.1)).to(dtype)
    parts = [
        (draw(2 * ffn, width, std=std).to(dtype), draw(width, ffn, std=std).to(dtype)) for _ in range(experts)
    ]
    own = CudaExperts(Router(Linear(router, None), mixture), mixture, parts, eight=eight)
    rounded = [tuple(wide_of(part) if eight else part.float() for part in pair) for pair in parts]
    wide = Experts(
        Router(Linear(router.float(), None), mixture),
        (Mlp(Linear(a, None), Linear(b, None), Ops()) for a, b in rounded),
    )
    both_rounded = Experts(
        Router(WideLinear(router, None), mixture),
        (Mlp(Fp8Linear(a, None), Fp8Linear(b, None), Ops()) for a, b in parts if eight),
    )
    for rows in (1, 2, 5, 8, 9, 16, 17, 64, 200, 700):
        x = draw(rows, width, std=0.05).to(dtype)
        wanted = wide(Ops().rms_norm(x.float(), gain.float(), EPS))
        normed = Ops().rms_norm(x, gain, EPS)
        answers = []
        if own.streams(x):
            answers.append([own.stream(x, gain, EPS).clone() for _ in range(2)])
        elif rows <= 16:
            print("the kernel for few rows does not run here")
        grouped = [x.clone() for _ in range(2)]
        for out in grouped:
            counted = own.tokens.clone()
            after = own.add_norm_(out, normed, gain, EPS)
            assert int((own.tokens - counted).sum()) == rows * top_k
            torch.testing.assert_close(after, Ops().rms_norm(out, gain, EPS), rtol=0.02, atol=0.02)
        # numbers that lie between two of E4M3 may be rounded to either
        checks = [(pair, wanted, 0.01) for pair in answers]
        checks.append((grouped, both_rounded(normed).float(), 0.03) if eight else (grouped, wanted, 0.01))
        for (first, again), expected, bound in checks:
            assert torch.equal(first, again)
            off = (first.float() - x.float() - expected).norm(dim=1) / expected.norm(dim=1)
            # rows whose last expert is as good as the next may have chosen that one
            assert off.median() < bound and (off < 3 * bound).float().mean() > 0.9, (rows, off.tolist())
