"""The MLP of a layer: SwiGLU, or a mixture of experts that are such MLPs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from roseinfer.models.config import Mixture
from roseinfer.models.linear import Linear
from roseinfer.models.ops import Ops
from roseinfer.models.weights import Weights

#: Gate and up, concatenated, `[2 · ffn, width]`, and down `[width, ffn]`.
Projections = tuple[Tensor, Tensor]


class Mlp:
    """SwiGLU (Shazeer, 2020); `gate_up` is the projections of gate and up, concatenated."""

    def __init__(self, gate_up: Linear, down: Linear, ops: Ops) -> None:
        self.gate_up, self.down, self._ops = gate_up, down, ops

    def __call__(self, x: Tensor) -> Tensor:
        """`[T, width]` → `[T, width]`."""
        return self.down(self._ops.swiglu(self.gate_up(x)))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Compute `residual` plus the MLP of `x`, `[T, width]`."""
        return self.down.add(self._ops.swiglu(self.gate_up(x)), residual)


class Router:
    """The choice of each token's experts: the `top_k` with the largest softmax, in float32."""

    def __init__(self, linear: Linear, mixture: Mixture) -> None:
        self.linear, self._mixture = linear, mixture

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights, in the dtype of x, and the numbers of the experts of each row of x
        `[T, width]`, `[T, top_k]`."""
        scores = self.linear(x).softmax(-1, dtype=torch.float32)
        weights, experts = scores.topk(self._mixture.top_k, -1)
        if self._mixture.normalized:
            weights /= weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), experts


class Experts:
    """A mixture of experts (Shazeer et al., 2017): each token is the weighted sum of the MLPs that the router
    chooses. The reference: on a CPU it computes each expert for its tokens alone, on a GPU, where the host
    would have to wait for the choice, each for all tokens."""

    def __init__(self, router: Router, mlps: Iterable[Mlp]) -> None:
        self.router, self.mlps = router, list(mlps)
        #: Tokens that each expert has computed, `[experts]` int64.
        self.tokens = torch.zeros(len(self.mlps), dtype=torch.int64, device=router.linear.weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """`[T, width]` → `[T, width]`."""
        weights, chosen = self.router(x)
        if x.is_cuda:
            scattered = torch.zeros(len(x), len(self.mlps), dtype=x.dtype, device=x.device)
            scattered.scatter_(1, chosen, weights)
            self.tokens += (scattered > 0).sum(0)
            return sum((w[:, None] * mlp(x) for w, mlp in zip(scattered.T, self.mlps, strict=True)), 0 * x)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=len(self.mlps))
        self.tokens += counts
        rows = x[order // chosen.shape[1]]
        made = torch.empty_like(rows)
        parts = (torch.split(each, counts.tolist()) for each in (rows, made))
        for mlp, inputs, out in zip(self.mlps, *parts, strict=True):
            if len(inputs):
                out.copy_(mlp(inputs))
        by_token = torch.empty_like(made)
        by_token[order] = made * weights.flatten()[order, None]
        return by_token.view(*chosen.shape, x.shape[1]).sum(1)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Compute `residual` plus the mixture of `x`, `[T, width]`."""
        return residual + self(x)


class SharedExpert:
    """A mixture beside an expert that computes every token, weighted by the sigmoid of `gate`."""

    def __init__(self, experts: Experts, shared: Mlp, gate: Linear) -> None:
        self.experts, self.shared, self.gate = experts, shared, gate

    def __call__(self, x: Tensor) -> Tensor:
        """`[T, width]` → `[T, width]`."""
        return self.add(x, torch.zeros_like(x))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Compute `residual` plus both of `x`, `[T, width]`."""
        return self.experts.add(x, residual + self.gate(x).sigmoid() * self.shared(x))


AnyMlp = Mlp | Experts | SharedExpert


def skew(mixtures: Sequence[Experts]) -> float:
    """Tokens of the busiest expert over those of the mean one, averaged over `mixtures`; 0 without any. On a
    GPU it does not wait for steps that run."""
    if not mixtures:
        return 0.0
    on_gpu = mixtures[0].tokens.is_cuda
    with torch.cuda.stream(torch.cuda.Stream() if on_gpu else None):  # type: ignore[no-untyped-call]
        tokens = torch.stack([each.tokens for each in mixtures]).cpu().double()
    return float((tokens.amax(1) / tokens.mean(1).clamp(min=1)).mean())


def expert_weights(weights: Weights, name: str, mixture: Mixture, width: int) -> Iterator[Projections]:
    """Yield the projections of each expert of the mixture `name`, stored one by one or stacked."""
    count, ffn = mixture.experts, mixture.ffn_width
    if f"{name}.gate_up_proj" in weights:
        gate_up = weights.get(f"{name}.gate_up_proj", (count, 2 * ffn, width))
        yield from zip(gate_up, weights.get(f"{name}.down_proj", (count, width, ffn)), strict=True)
        return
    for expert in range(count):
        gate, up = (
            weights.get(f"{name}.{expert}.{part}_proj.weight", (ffn, width)) for part in ("gate", "up")
        )
        yield torch.cat((gate, up)), weights.get(f"{name}.{expert}.down_proj.weight", (width, ffn))
