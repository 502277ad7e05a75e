"""GPT-2 on a GPU, in few kernels: for a handful of rows in Triton throughout, for more with cuBLAS."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.attention.base import Attention
from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.kernels.triton.argmax import argmax, choose
from roseinfer.kernels.triton.embed import embed_last
from roseinfer.kernels.triton.few_rows import (
    MAX_ROWS,
    Tile,
    head,
    join_linear_add_,
    linear,
    linear_add_,
    norm_linear,
    tile_for,
)
from roseinfer.kernels.triton.launch import multiprocessors
from roseinfer.kernels.triton.norm import add_norm_, norm
from roseinfer.models.gpt2 import GPT2, Layer, Norm
from roseinfer.models.linear import Linear

#: cuBLAS takes its fast kernels where an output's row is a multiple of this.
_ALIGNED = 64


class CudaGPT2(GPT2):
    """The same weights and, within rounding, the same results as GPT2."""

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        return self._layers_of(
            F.embedding(tokens, self._tokens) + F.embedding(positions, self._positions), attention
        )

    def forward_last(self, last: Tensor, rows: Tensor, lengths: Tensor, attention: Attention) -> Tensor:
        """`forward` of the tokens `last[rows]` at positions `lengths - 1`: one row a request."""
        return self._layers_of(embed_last(last, rows, lengths, self._tokens, self._positions), attention)

    def logits(self, hidden: Tensor) -> Tensor:
        normed = norm(hidden, self._norm.weight, self._norm.bias, self._norm.eps)
        return (normed @ self._aligned_head.t())[:, : self.config.vocab_size]

    def choose(self, hidden: Tensor, rows: Tensor, last: Tensor, out: Tensor) -> Tensor:
        """The likeliest next tokens of hidden states `[R, width]`, as `argmax` leaves them. Returns the
        logits `[R, vocab]`."""
        if len(hidden) > 1:
            logits = self.logits(hidden)
            argmax(logits, rows, last, out)
            return logits
        last_norm = self._norm
        programs = 2 * multiprocessors(hidden.device)
        logits, best, token = head(
            hidden, last_norm.weight, last_norm.bias, self._tokens, last_norm.eps, Tile(16), programs
        )
        choose(best, token, rows, last, out)
        return logits

    def _layers_of(self, x: Tensor, attention: Attention) -> Tensor:
        for index, layer in enumerate(self._layers):
            if len(x) == 1:
                self._one_row(index, layer, x, attention)
            elif len(x) <= MAX_ROWS:
                self._few_rows(index, layer, x, attention)
        return x if len(x) <= MAX_ROWS else self._many_rows(x, attention)

    def _one_row(self, index: int, layer: Layer, x: Tensor, attention: Attention) -> None:
        split = None
        q, k, v = self._heads(self._norm_linear(x, layer.norm_1, layer.qkv, gelu=False))
        if isinstance(attention, CudaPagedAttention):
            split = attention.attend_split(index, q, k, v)
        if split is None:
            linear_add_(x, attention.attend(index, q, k, v), *self._parts(layer.out))
        else:
            means, shares = split
            join_linear_add_(x, means, shares, *self._parts(layer.out))
        linear_add_(x, self._norm_linear(x, layer.norm_2, layer.up, gelu=True), *self._parts(layer.down))

    def _norm_linear(self, x: Tensor, before: Norm, to: Linear, *, gelu: bool) -> Tensor:
        weight, bias, tile = self._parts(to)
        return norm_linear(x, before.weight, before.bias, weight, bias, before.eps, tile, gelu=gelu)

    def _few_rows(self, index: int, layer: Layer, x: Tensor, attention: Attention) -> None:
        normed = norm(x, layer.norm_1.weight, layer.norm_1.bias, layer.norm_1.eps)
        qkv = linear(normed, *self._parts(layer.qkv), gelu=False)
        linear_add_(x, attention.attend(index, *self._heads(qkv)), *self._parts(layer.out))
        normed = norm(x, layer.norm_2.weight, layer.norm_2.bias, layer.norm_2.eps)
        linear_add_(x, linear(normed, *self._parts(layer.up), gelu=True), *self._parts(layer.down))

    def _many_rows(self, x: Tensor, attention: Attention) -> Tensor:
        before = self._layers[0].norm_1
        normed = norm(x, before.weight, before.bias, before.eps)
        for index, layer in enumerate(self._layers):
            attended = attention.attend(index, *self._heads(layer.qkv(normed)))
            before = layer.norm_2
            branch = attended @ layer.out.weight.t()
            normed = add_norm_(x, branch, _bias(layer.out), before.weight, before.bias, before.eps)
            wide = torch._addmm_activation(_bias(layer.up), normed, layer.up.weight.t(), use_gelu=True)
            branch = wide @ layer.down.weight.t()
            before = self._layers[index + 1].norm_1 if index + 1 < len(self._layers) else self._norm
            normed = add_norm_(x, branch, _bias(layer.down), before.weight, before.bias, before.eps)
        return x

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv.view(len(qkv), 3, -1, self.config.head_dim).unbind(1)
        return q, k, v

    def _parts(self, linear: Linear) -> tuple[Tensor, Tensor, Tile]:
        tile = tile_for(linear.out_features, multiprocessors(linear.weight.device))
        return linear.weight, _bias(linear), tile

    @cached_property
    def _aligned_head(self) -> Tensor:
        vocab = len(self._tokens)
        return F.pad(self._tokens, (0, 0, 0, -vocab % _ALIGNED))


def _bias(linear: Linear) -> Tensor:
    assert linear.bias is not None
    return linear.bias
