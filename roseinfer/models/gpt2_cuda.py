"""GPT-2 on a GPU with fused kernels: two a layer for up to 8 decode rows, seven otherwise, some of cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.attention.base import Attention
from roseinfer.attention.cuda_paged import CudaPagedAttention, Decodes
from roseinfer.kernels.cuda import few_rows
from roseinfer.kernels.triton import head
from roseinfer.kernels.triton.argmax import argmax, choose
from roseinfer.kernels.triton.embed import embed_last
from roseinfer.kernels.triton.norm import add_norm_, norm
from roseinfer.kernels.triton.pipelined import PipelinedTile
from roseinfer.kernels.triton.products import Tile, product, product_in_parts
from roseinfer.kernels.triton.resident import MAX_ROWS as MAX_RESIDENT_ROWS
from roseinfer.kernels.triton.resident import ResidentTile
from roseinfer.models.gpt2 import GPT2
from roseinfer.models.linear import Linear

#: cuBLAS has faster kernels where the number of outputs is a multiple of this: a step of 64 requests took 530
#: instead of 634 us (H200, 2026-11-21, docs/notes/h200.md).
_ALIGNED = 64
#: Tiles of a layer's GEMMs of up to so many rows; the others are left to cuBLAS. `out` and `down`, which are
#: added to the residual stream, have few outputs, so they are split along K. The fastest of those tried with
#: GPT-2 124M in fp16 on an H200, 2026-11-22: see docs/notes/h200.md.
TILES: dict[int, dict[str, Tile]] = {
    MAX_RESIDENT_ROWS: {
        "qkv": ResidentTile(),
        "out": ResidentTile(splits=4, inputs=64),
        "up": ResidentTile(),
        "down": ResidentTile(splits=4),
    },
    64: {
        "out": PipelinedTile(64, 32, splits=2, stages=4),
        "up": PipelinedTile(64, 64, stages=5),
        "down": PipelinedTile(64, 64, splits=4),
    },
    128: {
        "qkv": PipelinedTile(64, 64, late=True),
        "out": PipelinedTile(128, 32, splits=4),
        "up": PipelinedTile(128, 32),
        "down": PipelinedTile(128, 64, splits=8, stages=5),
    },
    256: {
        "out": PipelinedTile(128, 32, splits=2),
        "up": PipelinedTile(128, 64, stages=5),
        "down": PipelinedTile(128, 64, splits=4, stages=5),
    },
}


def tile_of(name: str, x: Tensor, weight: Tensor) -> Tile | None:
    """The tile for GEMM `name` of x `[R, K]` with weight `[N, K]`; None: cuBLAS."""
    tiles = next((tiles for rows, tiles in TILES.items() if len(x) <= rows), {})
    tile = tiles.get(name)
    return tile if tile is not None and tile.takes(x, weight) else None


class CudaGPT2(GPT2):
    """The same weights and, within rounding, the same results as GPT2, but hidden states have gone through
    the final norm."""

    fused: ClassVar[bool] = True
    #: Measured with GPT-2 124M in fp16 on an H200, 2026-11-22: see docs/notes/h200.md.
    decode_parts: ClassVar[Mapping[int, int]] = {8: 2, 24: 2, 32: 2, 40: 3, 48: 3}

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        return self._layers_of(
            F.embedding(tokens, self._tokens) + F.embedding(positions, self._positions), attention
        )

    def forward_last(self, last: Tensor, rows: Tensor, lengths: Tensor, attention: Attention) -> Tensor:
        return self._layers_of(embed_last(last, rows, lengths, self._tokens, self._positions), attention)

    def logits(self, hidden: Tensor) -> Tensor:
        return (hidden @ self._aligned_head.t())[:, : self.config.vocab_size]

    def choose(self, hidden: Tensor, rows: Tensor, last: Tensor, out: Tensor) -> Tensor:
        if not head.takes(hidden):
            logits = self.logits(hidden)
            argmax(logits, rows, last, out)
            return logits
        logits, best, token = head.head(hidden, self._head.weight)
        choose(best, token, rows, last, out)
        return logits

    def _layers_of(self, x: Tensor, attention: Attention) -> Tensor:
        if isinstance(attention, CudaPagedAttention) and len(x) <= few_rows.MAX_ROWS:
            decodes = attention.decodes_alone
            shape = self._shape(attention.block_size, x.dtype)
            same = attention.cache(0)[0].dtype == x.dtype
            if decodes is not None and same and shape.runs(x.device):
                return self._few_rows(shape, x, attention, decodes)
        return self._rows(x, attention)

    def _few_rows(
        self, shape: few_rows.Shape, x: Tensor, attention: CudaPagedAttention, decodes: Decodes
    ) -> Tensor:
        stream = few_rows.Stream(x)
        for index, layer in enumerate(self._layers):
            stream = few_rows.attention(
                shape, stream, layer.norm_1.weight, layer.norm_1.bias, _parts(layer.qkv), _parts(layer.out),
                attention.cache(index), decodes.table, decodes.rows, decodes.lengths,
            )  # fmt: skip
            stream = few_rows.mlp(
                shape, stream, layer.norm_2.weight, layer.norm_2.bias, _parts(layer.up), _parts(layer.down)
            )
        assert stream.parts is not None and stream.bias is not None
        last = self._norm
        return add_norm_(stream.x, stream.parts, stream.bias, last.weight, last.bias, last.eps)

    def _rows(self, x: Tensor, attention: Attention) -> Tensor:
        before = self._layers[0].norm_1
        normed = norm(x, before.weight, before.bias, before.eps)
        for index, layer in enumerate(self._layers):
            attended = attention.attend(index, *self._heads(_product(normed, layer.qkv, "qkv")))
            before = layer.norm_2
            branch = _branch(attended, layer.out, "out")
            normed = add_norm_(x, branch, _bias(layer.out), before.weight, before.bias, before.eps)
            branch = _branch(_product(normed, layer.up, "up", gelu=True), layer.down, "down")
            before = self._layers[index + 1].norm_1 if index + 1 < len(self._layers) else self._norm
            normed = add_norm_(x, branch, _bias(layer.down), before.weight, before.bias, before.eps)
        return normed

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv.view(len(qkv), 3, -1, self.config.head_dim).unbind(1)
        return q, k, v

    def _shape(self, block_size: int, dtype: torch.dtype) -> few_rows.Shape:
        config = self.config
        return few_rows.Shape(
            config.width, config.heads, config.ffn_width, config.norm_eps, dtype, block_size
        )

    @cached_property
    def _aligned_head(self) -> Tensor:
        weight = self._head.weight
        return F.pad(weight, (0, 0, 0, -len(weight) % _ALIGNED))


def _product(x: Tensor, linear: Linear, name: str, *, gelu: bool = False) -> Tensor:
    if tile := tile_of(name, x, linear.weight):
        return product(x, linear.weight, _bias(linear), tile, gelu=gelu)
    if gelu:
        return torch._addmm_activation(_bias(linear), x, linear.weight.t(), use_gelu=True)
    return linear(x)


def _branch(x: Tensor, linear: Linear, name: str) -> Tensor:
    """Split-K partial sums of what is added to the residual stream, without the bias, `[parts, R, width]`."""
    if tile := tile_of(name, x, linear.weight):
        return product_in_parts(x, linear.weight, tile)
    return (x @ linear.weight.t())[None]


def _parts(linear: Linear) -> tuple[Tensor, Tensor]:
    return linear.weight, _bias(linear)


def _bias(linear: Linear) -> Tensor:
    assert linear.bias is not None
    return linear.bias
