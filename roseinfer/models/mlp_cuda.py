"""A mixture of experts on a GPU, with fused kernels that the host need not wait for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from roseinfer.kernels.cuda import experts as streamed
from roseinfer.kernels.triton import experts as grouped
from roseinfer.kernels.triton.pipelined import PipelinedTile
from roseinfer.kernels.triton.products import product_in_parts
from roseinfer.kernels.triton.rms_norm import add_rms_norm_
from roseinfer.models.config import Mixture
from roseinfer.models.mlp import Experts, Projections, Router

#: Tiling of the router's GEMM for up to so many rows; cuBLAS computes more. Not measured yet.
_ROUTER, _ROUTER_ROWS = PipelinedTile(16, 32, splits=4, inputs=128, stages=4), 256


class CudaExperts(Experts):
    """The projections of all experts are stacked: `gate_up` `[experts, 2 · ffn, width]`, `down` `[experts,
    width, ffn]`."""

    def __init__(self, router: Router, mixture: Mixture, parts: Iterable[Projections]) -> None:
        super().__init__(router, ())
        self._mixture, count = mixture, mixture.experts
        for index, (gate_up, down) in enumerate(parts):
            if not index:
                self.gate_up, self.down = (part.new_empty(count, *part.shape) for part in (gate_up, down))
                self.tokens = torch.zeros(count, dtype=torch.int64, device=down.device)
            self.gate_up[index], self.down[index] = gate_up, down

    def __call__(self, x: Tensor) -> Tensor:
        """`[T, width]` → `[T, width]`."""
        return self.add(x, torch.zeros_like(x))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        out = residual.clone()
        self.add_norm_(out, x, out[0], 0.0)
        return out

    def streams(self, x: Tensor) -> bool:
        """Return whether `stream` takes `x`."""
        return streamed.takes(x, self.down)

    def stream(self, x: Tensor, gain: Tensor, eps: float, plan: streamed.Plan | None = None) -> Tensor:
        """Return `x` plus the mixture of its RMS norm with `gain`, `[T, width]`. `plan`: as in
        `add_experts`."""
        return streamed.add_experts(
            x, gain, eps, self.router.linear.weight, self.gate_up, self.down, self.tokens,
            self._mixture.top_k, normalized=self._mixture.normalized, plan=plan,
        )  # fmt: skip

    def add_norm_(self, x: Tensor, normed: Tensor, gain: Tensor, eps: float) -> Tensor:
        """Add the mixture of `normed` to `x` `[T, width]` in place. Returns the RMS norm of `x`, with
        `gain`."""
        mixture, logits = self._mixture, self._logits(normed)
        tiles = grouped.tiles_for(len(x) * mixture.top_k, mixture.experts)
        routed = grouped.route(logits, self.tokens, mixture.top_k, tiles.rows, normalized=mixture.normalized)
        gated = grouped.product(normed, self.gate_up, routed, tiles.gate_up, gated=True)
        made = grouped.product(gated, self.down, routed, tiles.down, gated=False)
        return add_rms_norm_(x, made[None], gain, eps, routed.places)

    def _logits(self, x: Tensor) -> Tensor:
        """The router's logits `[parts, T, experts]`, of which the parts are to be summed."""
        weight = self.router.linear.weight
        if len(x) <= _ROUTER_ROWS and _ROUTER.takes(x, weight):
            return product_in_parts(x, weight, _ROUTER)
        if x.dtype == torch.float32:
            return self.router.linear(x)[None]
        return torch.mm(x, weight.t(), out_dtype=torch.float32)[None]
