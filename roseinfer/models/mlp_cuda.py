"""A mixture of experts on a GPU, with fused kernels that the host need not wait for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from roseinfer.e4m3 import E4M3
from roseinfer.kernels.cuda import experts as streamed
from roseinfer.kernels.triton import experts as grouped
from roseinfer.kernels.triton.pipelined import PipelinedTile
from roseinfer.kernels.triton.products import product_in_parts
from roseinfer.kernels.triton.rms_norm import add_rms_norm_
from roseinfer.models.config import Mixture
from roseinfer.models.fp8 import quantize
from roseinfer.models.mlp import Experts, Projections, Router

#: Tiling of the router's GEMM for up to so many rows; cuBLAS computes more. Not measured yet.
_ROUTER, _ROUTER_ROWS = PipelinedTile(16, 32, splits=4, inputs=128, stages=4), 256


class _Stack:
    """The same projection of all experts: `values` `[experts, outputs, inputs]`, with `eight` in E4M3, with
    `scales` `[experts, outputs]` float32. Experts are put into it one by one."""

    def __init__(self, like: Tensor, experts: int, *, eight: bool) -> None:
        self.values = like.new_empty(experts, *like.shape, dtype=E4M3 if eight else like.dtype)
        self.scales = like.new_empty(experts, len(like), dtype=torch.float32) if eight else None

    def __setitem__(self, expert: int, part: Tensor) -> None:
        if self.scales is None:
            self.values[expert] = part
            return
        rows = quantize(part)
        self.values[expert], self.scales[expert] = rows.values, rows.scales[:, 0]


class CudaExperts(Experts):
    """The projections of all experts are stacked: `gate_up` `[experts, 2 · ffn, width]`, `down` `[experts,
    width, ffn]`. With `eight` they are in E4M3, and `scales` has those of both, `[experts, outputs]`
    float32."""

    scales: tuple[Tensor, Tensor] | None = None

    def __init__(
        self, router: Router, mixture: Mixture, parts: Iterable[Projections], *, eight: bool = False
    ) -> None:
        super().__init__(router, ())
        self._mixture = mixture
        for index, pair in enumerate(parts):
            if not index:
                stacks = [_Stack(part, mixture.experts, eight=eight) for part in pair]
            for stack, part in zip(stacks, pair, strict=True):
                stack[index] = part
        gate_up, down = stacks
        self.gate_up, self.down = gate_up.values, down.values
        if gate_up.scales is not None and down.scales is not None:
            self.scales = gate_up.scales, down.scales
        self.tokens = torch.zeros(mixture.experts, dtype=torch.int64, device=self.down.device)

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
            self._mixture.top_k, scales=self.scales, normalized=self._mixture.normalized, plan=plan,
        )  # fmt: skip

    def add_norm_(self, x: Tensor, normed: Tensor, gain: Tensor, eps: float) -> Tensor:
        """Add the mixture of `normed` to `x` `[T, width]` in place. Returns the RMS norm of `x`, with
        `gain`."""
        mixture, logits = self._mixture, self._logits(normed)
        tiles = grouped.tiles_for(len(x) * mixture.top_k, mixture.experts)
        routed = grouped.route(logits, self.tokens, mixture.top_k, tiles.rows, normalized=mixture.normalized)
        scales, down_scales = self.scales or (None, None)
        gated = grouped.product(normed, self.gate_up, routed, tiles.gate_up, gated=True, scales=scales)
        made = grouped.product(gated, self.down, routed, tiles.down, gated=False, scales=down_scales)
        return add_rms_norm_(x, made[None], gain, eps, routed.places)

    def _logits(self, x: Tensor) -> Tensor:
        """The router's logits `[parts, T, experts]`, of which the parts are to be summed."""
        weight = self.router.linear.weight
        if len(x) <= _ROUTER_ROWS and _ROUTER.takes(x, weight):
            return product_in_parts(x, weight, _ROUTER)
        if x.dtype == torch.float32:
            return self.router.linear(x)[None]
        return torch.mm(x, weight.t(), out_dtype=torch.float32)[None]
