"""The Llama family on a GPU with fused kernels: five a layer for up to 8 decode rows, of many shapes for up
to 16, and eight otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from roseinfer.attention.base import Attention
from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.kernels.cuda import stream
from roseinfer.kernels.cuda.gqa_decode import Heads, Rotation
from roseinfer.kernels.triton.argmax import argmax
from roseinfer.kernels.triton.embed import embed_rows
from roseinfer.kernels.triton.fp8 import norm_rows_, round_rows, swiglu_rows
from roseinfer.kernels.triton.fp8_product import Fp8Tile, fp8_product
from roseinfer.kernels.triton.gated import GatedTile, gated_product
from roseinfer.kernels.triton.pipelined import PipelinedTile
from roseinfer.kernels.triton.products import product_in_parts
from roseinfer.kernels.triton.rms_norm import add_rms_norm_, rms_norm
from roseinfer.kernels.triton.swiglu import swiglu
from roseinfer.models.cuda_ranks import CudaRanks
from roseinfer.models.fp8 import Fp8Linear, Rows
from roseinfer.models.linear import Linear
from roseinfer.models.llama import Layer, Llama
from roseinfer.models.mlp import Experts, Mlp, Projections, Router
from roseinfer.models.mlp_cuda import CudaExperts

#: What mixes the tokens of a step: a layer's number, the layer, and the output of its first GEMM, to what its
#: `out` takes.
Mix = Callable[[int, Layer, Tensor], Tensor]
#: GEMMs whose weight has at most this many elements run in Triton: they start while the kernel before ends,
#: which gains more than cuBLAS' faster kernels. On an H200, 2026-11-22, they gain with the weights of
#: Qwen3-0.6B, of at most 6.3M elements, and not with those of 8B, of 16.8M and more, but for gate and up
#: with 16 rows (docs/notes/h200-llama.md). Not measured in between.
_SMALL = 7 << 20
#: Tiles of GEMMs of up to so many rows with a small weight: of those whose result is added to the residual
#: stream, which have few outputs, and of gate and up. Measured on an H200, 2026-11-22.
TILES: dict[int, tuple[PipelinedTile, GatedTile]] = {
    16: (PipelinedTile(16, 32, splits=4), GatedTile(16, 32, inputs=128)),
    64: (PipelinedTile(64, 64, splits=4, stages=4), GatedTile(64, 32, stages=5)),
    256: (PipelinedTile(128, 64, splits=4, stages=5), GatedTile(128, 64, warps=8)),
}


class CudaLlama(Llama):
    """The same weights and, within rounding, the same results as Llama."""

    fused: ClassVar[bool] = True
    mixes: ClassVar[bool] = True
    by_context: ClassVar[bool] = True
    #: Whether experts are in E4M3.
    eight: ClassVar[bool] = False

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        if not isinstance(attention, CudaPagedAttention):
            return super().forward(tokens, positions, attention)
        return self._layers_of(self.ranks.embed(tokens, self._tokens), positions, attention)

    def forward_last(self, last: Tensor, rows: Tensor, lengths: Tensor, attention: Attention) -> Tensor:
        if not isinstance(attention, CudaPagedAttention):
            return super().forward_last(last, rows, lengths, attention)
        return self._layers_of(self._embed_last(last, rows), None, attention)

    def _embed_last(self, last: Tensor, rows: Tensor) -> Tensor:
        if isinstance(self.ranks, CudaRanks):
            return self.ranks.embed_last(last, rows, self._tokens)
        return embed_rows(last, rows, self._tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, self._norm, self.config.norm_eps)
        if isinstance(self.ranks, CudaRanks):
            return self.ranks.logits(self._head, normed)
        return self._head(normed)

    def choose(self, hidden: Tensor, rows: Tensor, last: Tensor, out: Tensor) -> Tensor:
        logits = self.logits(hidden)
        argmax(logits, rows, last, out)
        return logits

    def _layers_of(self, x: Tensor, positions: Tensor | None, attention: CudaPagedAttention) -> Tensor:
        mix = self._mixing(positions, attention)
        if self._streams(x) and attention.decodes_alone is not None:
            return self._few_rows(x, mix)
        return self._rows(x, mix)

    def _mixing(self, positions: Tensor | None, attention: CudaPagedAttention) -> Mix:
        """Return the function that mixes the tokens of a step in each layer: attention."""

        def mix(index: int, layer: Layer, product: Tensor) -> Tensor:
            return attention.attend_product(index, product, positions, self._heads, self._rotations[index])

        return mix

    def _streams(self, x: Tensor) -> bool:
        """Return whether the largest GEMM of a layer, and so the others, had better be `stream` where it can
        be."""
        for mixture in self.mixtures:
            assert isinstance(mixture, CudaExperts)
            return mixture.streams(x)
        weight = _mlp(self._layers[0]).gate_up.weight
        return len(x) <= stream.FEW_ROWS or stream.takes(x, weight, gated=True, normed=True)

    def _few_rows(self, x: Tensor, mix: Mix) -> Tensor:
        eps = self.config.norm_eps
        for index, layer in enumerate(self._layers):
            mixed = mix(index, layer, normed_product(x, layer.norm_1, eps, layer.qkv))
            x, mlp = self._added_product(mixed, layer.out, x), layer.mlp
            if isinstance(mlp, Mlp):
                gated = normed_product(x, layer.norm_2, eps, mlp.gate_up, gated=True)
                x = self._added_product(gated, mlp.down, x)
            elif isinstance(mlp, CudaExperts):
                x = mlp.stream(x, layer.norm_2, eps)
            else:
                x = mlp.add(rms_norm(x, layer.norm_2, eps), x)
        return x

    def _rows(self, x: Tensor, mix: Mix) -> Tensor:
        eps, layers = self.config.norm_eps, self._layers
        gains = [*(layer.norm_1 for layer in layers[1:]), self._norm]
        normed = rms_norm(x, layers[0].norm_1, eps)
        for index, (layer, gain) in enumerate(zip(layers, gains, strict=True)):
            mixed, mlp = mix(index, layer, layer.qkv(normed)), layer.mlp
            normed = self._add_norm_(x, mixed, layer.out, layer.norm_2)
            if isinstance(mlp, Mlp):
                normed = self._add_norm_(x, _gated(normed, mlp.gate_up), mlp.down, gain)
            elif isinstance(mlp, CudaExperts):
                normed = mlp.add_norm_(x, normed, gain, eps)
            else:
                x = mlp.add(normed, x)
                normed = rms_norm(x, gain, eps)
        return x

    def _experts(self, router: Router, parts: Iterable[Projections]) -> Experts:
        assert self.config.mixture is not None
        return CudaExperts(router, self.config.mixture, parts, eight=self.eight)

    def _added_product(self, x: Tensor, linear: Linear, residual: Tensor) -> Tensor:
        if isinstance(self.ranks, CudaRanks):
            return self.ranks.add(linear, x, residual)
        if stream.takes(x, linear.weight):
            return stream.product(x, linear.weight, linear.bias, residual=residual, scales=linear.scales)
        return linear.add(x, residual)

    def _add_norm_(self, x: Tensor, inputs: Tensor, linear: Linear, gain: Tensor) -> Tensor:
        """Add a linear layer of `inputs` to `x` in place. Returns the RMS norm of `x`, with `gain`."""
        if isinstance(self.ranks, CudaRanks):
            return self.ranks.add_norm(linear, inputs, x, gain, self.config.norm_eps)
        return add_rms_norm_(x, _branch(inputs, linear), gain, self.config.norm_eps)

    @cached_property
    def _heads(self) -> Heads:
        return Heads(self.config.heads, self.config.kv_heads, self.config.head_dim)

    @cached_property
    def _rotations(self) -> list[Rotation]:
        return [self._rotation(layer) for layer in self._layers]

    def _rotation(self, layer: Layer) -> Rotation:
        gains = layer.qk_norm
        q_gain, k_gain = (None, None) if gains is None else (gains[0], gains[self.config.heads])
        return Rotation(self._turns, q_gain, k_gain, self.config.norm_eps)


def _mlp(layer: Layer) -> Mlp:
    assert isinstance(layer.mlp, Mlp)
    return layer.mlp


def normed_product(x: Tensor, gain: Tensor, eps: float, linear: Linear, *, gated: bool = False) -> Tensor:
    """A linear layer of the RMS norm of x, with SwiGLU after it where `gated`."""
    weight, bias, scales = linear.weight, linear.bias, linear.scales
    if stream.takes(x, weight, gated=gated, normed=True):
        return stream.product(x, weight, bias, norm=(gain, eps), gated=gated, scales=scales)
    normed = rms_norm(x, gain, eps)
    if stream.takes(normed, weight, gated=gated):
        return stream.product(normed, weight, bias, gated=gated, scales=scales)
    return swiglu(linear(normed)) if gated else linear(normed)


def _gated(x: Tensor, linear: Linear) -> Tensor:
    """The gate and up projections, with SwiGLU after them."""
    tiles = _tiles(x, linear)
    if tiles is not None and tiles[1].takes(x, linear.weight):
        return gated_product(x, linear.weight, tiles[1])
    return swiglu(linear(x))


def _branch(x: Tensor, linear: Linear) -> Tensor:
    """Split-K partial sums of what is added to the residual stream, `[parts, T, width]`."""
    tiles = _tiles(x, linear)
    if tiles is not None and tiles[0].takes(x, linear.weight):
        return product_in_parts(x, linear.weight, tiles[0])
    return linear(x)[None]


def _tiles(x: Tensor, linear: Linear) -> tuple[PipelinedTile, GatedTile] | None:
    if linear.bias is not None or linear.weight.numel() > _SMALL:
        return None
    return next((tiles for rows, tiles in TILES.items() if len(x) <= rows), None)


#: The first that takes a GEMM runs it; otherwise cuBLAS does. Measured on an H200, 2026-11-22.
_FP8_TILES = (Fp8Tile(16, 32, inputs=256, stages=4), Fp8Tile(64, 32, inputs=256, stages=4))


class Fp8CudaLlama(CudaLlama):
    """Linear layers in FP8: the kernels between them quantize their outputs. Nine kernels a layer without
    experts; where only weights are quantized and rows are few as many as in CudaLlama."""

    eight: ClassVar[bool] = True

    def _layers_of(self, x: Tensor, positions: Tensor | None, attention: CudaPagedAttention) -> Tensor:
        mix = self._mixing(positions, attention)
        if self._streams(x) and attention.decodes_alone is not None:
            return self._few_rows(x, mix)
        eps, layers = self.config.norm_eps, self._layers
        gains = [*(layer.norm_1 for layer in layers[1:]), self._norm]
        normed = norm_rows_(x, None, layers[0].norm_1, eps)
        for index, (layer, gain) in enumerate(zip(layers, gains, strict=True)):
            attended = round_rows(mix(index, layer, _product(normed, layer.qkv, x)))
            if isinstance(layer.mlp, CudaExperts):  # the router's inputs are not rounded
                branch = _product(attended, layer.out, x)[None]
                routed = add_rms_norm_(x, branch, layer.norm_2, eps)
                normed = round_rows(layer.mlp.add_norm_(x, routed, gain, eps))
                continue
            normed = self._added(x, attended, layer.out, layer.norm_2)
            gated = swiglu_rows(_product(normed, _mlp(layer).gate_up, x))
            normed = self._added(x, gated, _mlp(layer).down, gain)
        return x

    def _added(
        self, x: Tensor, rows: tuple[Tensor, Tensor], linear: Linear, gain: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add a linear layer of `rows` to `x` in place. Returns its RMS norm with `gain`, quantized."""
        product, eps = _product(rows, linear, x), self.config.norm_eps
        if isinstance(self.ranks, CudaRanks):
            part = self.ranks.part(len(x)).copy_(product)
            return round_rows(self.ranks.add_part_norm(part, x, gain, eps))
        return norm_rows_(x, product, gain, eps)


def _product(rows: tuple[Tensor, Tensor], linear: Linear, like: Tensor) -> Tensor:
    assert isinstance(linear, Fp8Linear)
    values, scales = rows
    tile = next((tile for tile in _FP8_TILES if tile.takes(values, linear.weight)), None)
    if tile is None or linear.bias is not None:
        return linear.times(Rows(values, scales), like.dtype)
    return fp8_product(values, scales, linear.weight, linear.scales, tile, like.dtype)
