"""GPT-2 on a GPU, in few kernels: for a handful of rows in Triton throughout, for more with cuBLAS."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.attention.base import Attention
from roseinfer.kernels.triton.argmax import argmax, choose
from roseinfer.kernels.triton.few_rows import MAX_ROWS, Tile, head, linear_add_, norm_linear, tile_for
from roseinfer.kernels.triton.norm import add_norm_
from roseinfer.models.gpt2 import GPT2
from roseinfer.models.linear import Linear


class CudaGPT2(GPT2):
    """The same weights and, within rounding, the same results as GPT2."""

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        x = F.embedding(tokens, self._tokens) + F.embedding(positions, self._positions)
        return self._few(x, attention) if len(x) <= MAX_ROWS else self._many(x, attention)

    def choose(self, hidden: Tensor, rows: Tensor, last: Tensor, out: Tensor) -> Tensor:
        """The likeliest next tokens of hidden states `[R, width]`, as `argmax` leaves them. Returns the
        logits `[R, vocab]`."""
        if len(hidden) > MAX_ROWS:
            logits = self.logits(hidden)
            argmax(logits, rows, last, out)
            return logits
        norm = self._norm
        logits, best, token = head(
            hidden, norm.weight, norm.bias, self._tokens, norm.eps, Tile(self._head_rows, 4)
        )
        choose(best, token, rows, last, out)
        return logits

    def _few(self, x: Tensor, attention: Attention) -> Tensor:
        for index, layer in enumerate(self._layers):
            for norm, linear, gelu in ((layer.norm_1, layer.qkv, False), (layer.norm_2, layer.up, True)):
                made = norm_linear(
                    x, norm.weight, norm.bias, linear.weight, _bias(linear), norm.eps, self._tile(linear),
                    gelu=gelu,
                )  # fmt: skip
                if gelu:
                    back = layer.down
                else:
                    made, back = attention.attend(index, *self._heads(made)), layer.out
                linear_add_(x, made, back.weight, _bias(back), self._tile(back))
        return x

    def _many(self, x: Tensor, attention: Attention) -> Tensor:
        norm = self._layers[0].norm_1
        normed = F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
        for index, layer in enumerate(self._layers):
            attended = attention.attend(index, *self._heads(layer.qkv(normed)))
            norm = layer.norm_2
            branch = attended @ layer.out.weight.t()
            normed = add_norm_(x, branch, _bias(layer.out), norm.weight, norm.bias, norm.eps)
            wide = torch._addmm_activation(_bias(layer.up), normed, layer.up.weight.t(), use_gelu=True)
            branch = wide @ layer.down.weight.t()
            norm = self._layers[index + 1].norm_1 if index + 1 < len(self._layers) else self._norm
            normed = add_norm_(x, branch, _bias(layer.down), norm.weight, norm.bias, norm.eps)
        return x

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv.view(len(qkv), 3, -1, self.config.head_dim).unbind(1)
        return q, k, v

    def _tile(self, linear: Linear) -> Tile:
        outputs, inputs = linear.weight.shape
        return tile_for(outputs, inputs, self._multiprocessors)

    @cached_property
    def _multiprocessors(self) -> int:
        return torch.cuda.get_device_properties(self._tokens.device).multi_processor_count

    @property
    def _head_rows(self) -> int:
        """Rows of the vocabulary in a program: 8 kB of weights a warp."""
        return 16


def _bias(linear: Linear) -> Tensor:
    assert linear.bias is not None
    return linear.bias
