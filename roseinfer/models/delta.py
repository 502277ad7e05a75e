"""The gated delta rule (Yang, Kautz, Hatamizadeh, 2025) in plain PyTorch: linear attention with a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.kvcache.states import StateRows, States
from roseinfer.tensors import to_device

#: Tokens that are computed together, by matrix products; the state goes from one such chunk to the next.
CHUNK = 64
#: Added to a squared length before its root is taken.
TINY = 1e-6
#: The prompts of a step, cut as a rule needs them.
Cut = TypeVar("Cut")


@dataclass(frozen=True)
class Chunks:
    """The `B` prompts of a step, cut into chunks: the first ones of all prompts, the longest prompt's first,
    then the second ones of those that have one, …

    Args:
        counts: number of first chunks, of second ones, …
        tokens, past, last: rows of a buffer in which the convolution's `taps - 1` inputs before a prompt's
            tokens precede theirs: those of the tokens `[T]`, of what precedes them, and of each prompt's last
            ones, both `[B · (taps - 1)]`.
        rows, continued: `[B]`, running rows, and which of them have a state.
        order: `[B]`, the prompts from the longest to the shortest.
        places: `[T]`, each token's row among the chunks.
    """

    counts: list[int]
    tokens: Tensor
    past: Tensor
    last: Tensor
    rows: Tensor
    continued: Tensor
    order: Tensor
    places: Tensor

    @classmethod
    def of(cls, step: StateRows, taps: int, device: torch.device) -> Chunks:
        start, count, context, row = np.array(
            [(s.start, s.count, s.context, s.request) for s in step.segments], dtype=np.int64
        ).T
        number = np.arange(len(count))
        before = np.repeat(number, count) * (taps - 1)  # inputs before those of the token's own prompt
        first = start + number * (taps - 1)
        inputs = np.arange(taps - 1)
        order = np.argsort(-count, kind="stable")
        rank = np.argsort(order)
        in_prompt = np.arange(count.sum()) - np.repeat(start, count)
        chunk = in_prompt // CHUNK
        counts = np.array([(count > i * CHUNK).sum() for i in range(-(-int(count.max()) // CHUNK))])
        offset = counts.cumsum() - counts
        places = (offset[chunk] + np.repeat(rank, count)) * CHUNK + in_prompt % CHUNK
        arrays = (
            np.arange(len(before)) + before + taps - 1, (first[:, None] + inputs).ravel(),
            ((first + count)[:, None] + inputs).ravel(), row, context > 0, order, places,
        )  # fmt: skip
        return cls(counts.tolist(), *(to_device(array.copy(), device) for array in arrays))


@dataclass(frozen=True)
class DeltaStep(Generic[Cut]):
    """The rows of a step, as each gated delta layer takes them: those of prompts, then `decodes` `[D]`."""

    states: States
    prompts: Cut | None
    decodes: Tensor | None


@dataclass(frozen=True)
class GatedDelta:
    """A layer's causal convolution, gated delta rule and gated norm.

    Args:
        kernel: of the convolution, `[taps, channels]`; this, `decay` and `bias` are float32.
        decay, bias: `[heads]`: a head's state is multiplied by exp(`decay` · softplus(alpha + `bias`)).
        gain: of the norm over each head's result, `[value_dim]`.
        key_heads, key_dim: of queries and keys, `[key_heads, key_dim]` each.
    """

    kernel: Tensor
    decay: Tensor
    bias: Tensor
    gain: Tensor
    key_heads: int
    key_dim: int
    eps: float

    @staticmethod
    def cut(rows: StateRows, taps: int, device: torch.device) -> Any:
        """The prompts of a step as this rule takes them."""
        return Chunks.of(rows, taps, device)

    @classmethod
    def step(cls, rows: StateRows, taps: int, device: torch.device) -> DeltaStep[Any]:
        """A step's rows as this rule takes them; `taps` are those of the convolution."""
        return DeltaStep(rows.states, cls.cut(rows, taps, device) if rows.segments else None, rows.decodes)

    def __call__(self, x: Tensor, step: DeltaStep[Any], layer: int) -> Tensor:
        """`[T, heads · value_dim]` of x `[T, inputs]`: the convolution's channels (queries, keys, values),
        gates of the norm, then beta and alpha, one for each head. `layer` of `step.states` is changed."""
        heads, value_dim = len(self.decay), len(self.gain)
        sizes = self.kernel.shape[1], heads * value_dim, heads, heads
        inputs, gates, beta, alpha = x.split_with_sizes(sizes, -1)
        beta, decay = beta.float().sigmoid(), self.decay * F.softplus(alpha.float() + self.bias)
        start = 0 if step.prompts is None else len(step.prompts.tokens)
        parts = []
        if step.prompts is not None:
            rows = inputs[:start].float(), decay[:start], beta[:start]
            parts.append(self._prompts(*rows, step.prompts, *step.states.layer(layer)))
        if step.decodes is not None:
            rows = inputs[start:].float(), decay[start:], beta[start:]
            parts.append(self._decodes(*rows, step.decodes, *step.states.layer(layer)))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + self.eps) * self.gain
        return (out.flatten(1) * F.silu(gates.float())).to(x.dtype)

    def _prompts(
        self, inputs: Tensor, decay: Tensor, beta: Tensor, chunks: Chunks, matrices: Tensor, kept: Tensor
    ) -> Tensor:
        past = torch.where(chunks.continued[:, None, None], kept.index_select(0, chunks.rows), 0.0)
        buffer = inputs.new_empty(len(inputs) + len(chunks.past), inputs.shape[1])
        buffer[chunks.tokens], buffer[chunks.past] = inputs, past.flatten(0, 1)
        kept.index_copy_(0, chunks.rows, buffer[chunks.last].view(past.shape))
        taps = len(self.kernel)
        count = len(buffer) - taps + 1
        convolved = buffer[:count] * self.kernel[0]
        for tap in range(1, taps):
            convolved += buffer[tap : tap + count] * self.kernel[tap]
        q, k, v = self._heads(convolved[chunks.tokens - taps + 1])
        rows = chunks.rows[chunks.order]
        continued = chunks.continued[chunks.order][:, None, None, None]
        states = torch.where(continued, matrices.index_select(0, rows), 0.0)
        out = chunked(q, k, v, decay, beta, states, chunks)
        matrices.index_copy_(0, rows, states)
        return out

    def _decodes(
        self, inputs: Tensor, decay: Tensor, beta: Tensor, rows: Tensor, matrices: Tensor, kept: Tensor
    ) -> Tensor:
        rows = rows.long()
        window = torch.cat((kept.index_select(0, rows), inputs[:, None]), 1)
        kept.index_copy_(0, rows, window[:, 1:])
        q, k, v = self._heads((window * self.kernel).sum(1))
        states = matrices.index_select(0, rows).mul_(decay.exp()[..., None, None])
        read, old = (torch.stack((q, k), -2) @ states).unbind(-2)
        change = (v - old) * beta[..., None]
        states.flatten(0, 1).baddbmm_(k.flatten(0, 1)[..., None], change.flatten(0, 1)[:, None])
        matrices.index_copy_(0, rows, states)
        return read + (q * k).sum(-1, keepdim=True) * change

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys `[T, heads, key_dim]`, of unit length and scaled, and values `[T, heads,
        value_dim]`."""
        width, heads = self.key_heads * self.key_dim, len(self.decay)
        q, k, v = F.silu(convolved).tensor_split((width, 2 * width), -1)
        q, k = (x.view(len(x), self.key_heads, self.key_dim) for x in (q, k))
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + TINY) for x in (q, k))
        q, k = (x.repeat_interleave(heads // self.key_heads, 1) for x in (q, k))
        return q * self.key_dim**-0.5, k, v.view(len(v), heads, -1)


def chunked(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, states: Tensor, chunks: Chunks
) -> Tensor:
    """The gated delta rule of prompts, as transformers' `torch_chunk_gated_delta_rule` computes it.

    Args:
        q, k, v: `[T, heads, dim]`, those of q and k alike; decay (a logarithm) and beta `[T, heads]`.
        states: `[B, heads, key dim, value dim]`, in the order of chunks, changed to those after the prompts.

    Returns:
        `[T, heads, value dim]`.
    """
    number, heads = sum(chunks.counts), q.shape[1]

    def cut(x: Tensor) -> Tensor:
        """`[T, heads, …]` → `[chunks · heads, CHUNK, …]`, zeros where there is no token."""
        padded = x.new_zeros(number * CHUNK, *x.shape[1:]).index_copy_(0, chunks.places, x)
        return padded.view(number, CHUNK, *x.shape[1:]).transpose(1, 2).flatten(0, 1)

    q, k, v, decay, beta = (cut(x) for x in (q, k, v, decay, beta))
    total = decay.cumsum(-1)  # since the chunk's beginning
    between = (total[:, :, None] - total[:, None, :]).tril().exp().tril()
    grown, weighted = total.exp()[..., None], k * beta[..., None]
    system = weighted @ k.mT * between
    within = q @ k.mT * between
    sides = torch.cat((v * beta[..., None], weighted * grown), -1)
    sides = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    new, predicted = sides.tensor_split((v.shape[-1],), -1)
    q = q * grown
    k = (k * (total[:, -1:] - total).exp()[..., None]).mT
    out = torch.empty_like(v)
    end = 0
    for count in chunks.counts:
        part, end = slice(end, end + count * heads), end + count * heads
        state = states[:count].flatten(0, 1)
        change = torch.baddbmm(new[part], predicted[part], state, alpha=-1)
        torch.bmm(q[part], state, out=out[part]).baddbmm_(within[part], change)
        state.mul_(grown[part, -1:]).baddbmm_(k[part], change)
    return out.view(number, heads, CHUNK, -1).transpose(1, 2).flatten(0, 1)[chunks.places]
