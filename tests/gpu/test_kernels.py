"""Kernels in CUDA C++ against PyTorch's operators."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from roseinfer.kernels.cuda import few_rows
from roseinfer.kernels.triton.paged_decode import paged_decode
from roseinfer.tensors import Uploads

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

SIZE, BLOCKS, EPS = 16, 64, 1e-5


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, device="cuda") * scale


class Layer:
    """Weights of one layer and a cache, in half precision, and what they make of a step in float32."""

    def __init__(self, width: int, dtype: torch.dtype, lengths: list[int]) -> None:
        inner, count = 4 * width, len(lengths)
        self.heads = width // 64
        self.shape = few_rows.Shape(width, self.heads, inner, EPS, dtype, SIZE)
        sizes = {
            "qkv": (3 * width, width),
            "out": (width, width),
            "up": (inner, width),
            "down": (width, inner),
        }
        self.linear = {
            name: (draw(*size, scale=size[1] ** -0.5).to(dtype), draw(size[0]).to(dtype))
            for name, size in sizes.items()
        }
        self.norms = [draw(2, width).to(dtype) for _ in range(2)]
        self.cache = [draw(few_rows.MAX_ROWS * BLOCKS * SIZE, self.heads, 64).to(dtype) for _ in range(2)]
        self.table = torch.randperm(few_rows.MAX_ROWS * BLOCKS, device="cuda").int().view(-1, BLOCKS)
        self.rows = torch.randperm(few_rows.MAX_ROWS, device="cuda")[:count].int()
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self.x = draw(count, width).to(dtype)

    def run(self) -> Tensor:
        step = self.table, self.rows, self.lengths
        linear, (first, second) = self.linear, self.norms
        stream = few_rows.attention(
            self.shape, few_rows.Stream(self.x), first[0], first[1], linear["qkv"], linear["out"],
            (self.cache[0], self.cache[1]), *step,
        )  # fmt: skip
        stream = few_rows.mlp(self.shape, stream, second[0], second[1], linear["up"], linear["down"])
        assert stream.bias is not None and stream.parts is not None
        return stream.x.float() + stream.bias.float() + stream.parts.sum(0)

    def reference(self) -> Tensor:
        """Run it first: the new tokens' keys and values are taken from the cache."""
        x = self.x.float()
        q = self._product(self._normed(x, 0), "qkv")[:, : x.shape[1]]
        x = x + self._product(torch.stack([self._attended(i, q[i]) for i in range(len(x))]), "out")
        hidden = self._product(self._normed(x, 1), "up")
        return x + self._product(F.gelu(hidden, approximate="tanh"), "down")

    def keys_and_values(self) -> Tensor:
        """Keys and values of the new tokens, `[R, 2, heads, 64]` float32."""
        x = self.x.float()
        normed = self._normed(x, 0)
        return self._product(normed, "qkv").view(len(x), 3, self.heads, 64)[:, 1:]

    def slots(self, index: int) -> Tensor:
        t = torch.arange(int(self.lengths[index]), device="cuda")
        return self.table[self.rows[index].long()][t // SIZE].long() * SIZE + t % SIZE

    def _normed(self, x: Tensor, which: int) -> Tensor:
        gain, shift = self.norms[which].float()
        return F.layer_norm(x, x.shape[1:], gain, shift, EPS)

    def _product(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.linear[name]
        return F.linear(x, weight.float(), bias.float())

    def _attended(self, index: int, q: Tensor) -> Tensor:
        k, v = (cache[self.slots(index)].float() for cache in self.cache)
        weights = torch.softmax(torch.einsum("hd,thd->ht", q.view(-1, 64), k) / 8, -1)
        return torch.einsum("ht,thd->hd", weights, v).flatten()


@settings(max_examples=40)
@given(
    st.integers(0, 1000),
    st.sampled_from([768, 1024]),
    st.sampled_from([torch.float16, torch.bfloat16]),
    st.lists(st.integers(1, BLOCKS * SIZE), min_size=1, max_size=few_rows.MAX_ROWS),
)
def test_a_layer_for_few_rows(seed: int, width: int, dtype: torch.dtype, lengths: list[int]) -> None:
    torch.manual_seed(seed)
    layer = Layer(width, dtype, lengths)
    before = [cache.clone() for cache in layer.cache]
    got = layer.run()
    tolerance = 0.02 if dtype == torch.float16 else 0.15
    torch.testing.assert_close(got, layer.reference(), rtol=tolerance, atol=tolerance)
    new = torch.stack([layer.slots(index)[-1] for index in range(len(lengths))])
    stored = torch.stack([cache[new].float() for cache in layer.cache], 1)
    torch.testing.assert_close(stored, layer.keys_and_values(), rtol=tolerance, atol=tolerance)
    for cache, old in zip(layer.cache, before, strict=True):
        cache[new] = old[new]
        assert torch.equal(cache, old)  # nothing else was written


def test_padding_writes_nothing() -> None:
    layer = Layer(768, torch.float16, [5, 0])
    before = layer.cache[0].clone()
    assert layer.run().isfinite().all()
    changed = (layer.cache[0] != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == [int(layer.slots(0)[-1])]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [32, 64, 128, 256])
@pytest.mark.parametrize("lengths", [[1, 37], [200] * 40])  # in parts, and whole
def test_attention_of_every_head_size(lengths: list[int], dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    count, heads, blocks = len(lengths), 8, -(-max(lengths) // SIZE)
    q, k, v = (draw(count, n, dim).to(dtype) for n in (heads, 2, 2))
    keys, values = (draw(count * blocks * SIZE, 2, dim).to(dtype) for _ in "kv")
    table = torch.randperm(count * blocks, device="cuda").int().view(count, blocks)
    rows, each = torch.arange(count, device="cuda").int(), torch.tensor(lengths, device="cuda").int()
    got = paged_decode(q, k, v, keys, values, table, rows, each, SIZE).view(count, heads, dim)
    for index, length in enumerate(lengths):
        t = torch.arange(length, device="cuda")
        slots = table[index][t // SIZE].long() * SIZE + t % SIZE
        assert torch.equal(keys[slots[-1]], k[index]) and torch.equal(values[slots[-1]], v[index])
        seen, shown = (cache[slots].float().repeat_interleave(heads // 2, 1) for cache in (keys, values))
        weights = torch.softmax(torch.einsum("hd,thd->ht", q[index].float(), seen) * dim**-0.5, -1)
        wanted = torch.einsum("ht,thd->hd", weights, shown)
        torch.testing.assert_close(got[index].float(), wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_uploads_are_copies(dtype: torch.dtype) -> None:
    """Of less than a part, of a few, and of many, which the GPU copies while others are filled in."""
    upload = Uploads(torch.device("cuda"), part=1 << 16)
    tensors = [torch.randint(-99, 99, (rows, 1000)).to(dtype) for rows in (1, 100, 9000)]
    for tensor, uploaded in zip(tensors, [upload(each) for each in tensors], strict=True):
        assert uploaded.is_cuda and torch.equal(uploaded.cpu(), tensor)
