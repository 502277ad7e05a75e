"""Triton's kernels against PyTorch's operators: on a GPU as they are, elsewhere in Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.e4m3 import E4M3, to_e4m3
from roseinfer.kernels.triton import (
    argmax,
    embed,
    gated,
    head,
    norm,
    paged_decode,
    pipelined,
    products,
    resident,
    store_kv,
)
from roseinfer.kernels.triton.pipelined import PipelinedTile

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: For a GPU, kernels are compiled by programs that are started.
pytestmark = [pytest.mark.slow, pytest.mark.integration if DEVICE == "cuda" else pytest.mark.unit]
EPS = 1e-5
examples = settings(max_examples=10)
seeds = st.integers(0, 1000)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@examples
@given(seeds, st.integers(1, 5), st.sampled_from([96, 128, 200]), st.integers(1, 3))
def test_norms(seed: int, rows: int, width: int, parts: int) -> None:
    x, branch = draw(seed, rows, width), draw(seed + 1, parts, rows, width)
    bias, gain, shift = draw(seed + 2, 3, width)
    close(norm.norm(x, gain, shift, EPS), F.layer_norm(x, (width,), gain, shift, EPS))
    summed = x + branch.sum(0) + bias
    close(norm.add_norm_(x, branch, bias, gain, shift, EPS), F.layer_norm(summed, (width,), gain, shift, EPS))
    close(x, summed)


@examples
@given(
    seeds,
    st.integers(1, resident.MAX_ROWS),
    st.sampled_from([96, 300]),
    st.integers(1, 70),
    st.integers(1, 4),
    st.booleans(),
)
def test_products(seed: int, rows: int, inputs: int, outputs: int, splits: int, gelu: bool) -> None:
    x, weight, bias = draw(seed, rows, inputs), draw(seed + 1, outputs, inputs) / 30, draw(seed + 2, outputs)
    tile = resident.ResidentTile(outputs=16, splits=splits, inputs=32)
    wanted = F.linear(x, weight)
    close(products.product_in_parts(x, weight, tile).sum(0), wanted)
    wanted = F.gelu(wanted + bias, approximate="tanh") if gelu else wanted + bias
    close(products.product(x, weight, bias, resident.ResidentTile(outputs=16, inputs=32), gelu=gelu), wanted)


@examples
@given(seeds, st.integers(1, 80), st.sampled_from([1, 2, 4]), st.sampled_from([16, 64]), st.booleans())
def test_pipelined_products(seed: int, rows: int, splits: int, height: int, gelu: bool) -> None:
    x, weight, bias = draw(seed, rows, 128), draw(seed + 1, 48, 128) / 30, draw(seed + 2, 48)
    wanted = F.linear(x, weight)
    tile = PipelinedTile(height, 16, splits, inputs=32, stages=2)
    close(products.product_in_parts(x, weight, tile).sum(0), wanted)
    wanted = F.gelu(wanted + bias, approximate="tanh") if gelu else wanted + bias
    whole = PipelinedTile(height, 16, inputs=32, stages=2)
    close(products.product(x, weight, bias, whole, gelu=gelu), wanted)


def test_tiles_that_do_not_divide_a_product_leave_it() -> None:
    x, weight = draw(0, 40, 768).half(), draw(1, 2304, 768).half()
    assert PipelinedTile(64, 64, splits=4).takes(x, weight)
    assert not PipelinedTile(64, 64, splits=5).takes(x, weight)
    assert not PipelinedTile(64, 5).takes(x, weight)
    assert not PipelinedTile(64, 64).takes(x.float(), weight.float())


def test_tiles_that_do_not_fit_shared_memory_leave_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes are those for which Triton compiles; above the limit it raises OutOfResources."""

    def taken(size: int, width: int) -> list[bool]:
        for module in (gated, head, pipelined, resident):
            monkeypatch.setattr(module, "shared_memory", lambda device: size)
        x, weight = torch.zeros(32, width).half(), torch.zeros(2 * width, width).half()
        tiles = PipelinedTile(128, 32), gated.GatedTile(128, 64), resident.ResidentTile()
        return [*(tile.takes(x, weight) for tile in tiles), head.takes(x[:4])]

    assert taken(232_448, 768) == [True, True, True, True]
    assert taken(232_448, 1600) == [True, True, True, True]
    assert taken(232_448, 3072) == [True, True, False, False]
    assert taken(166_912, 1600) == [True, True, False, True]
    assert taken(101_376, 768) == [False, True, True, True]
    assert taken(101_376, 1280) == [False, True, False, False]


@examples
@given(seeds, st.integers(1, head.MAX_ROWS), st.integers(1, 150))
def test_head_and_choice(seed: int, rows: int, vocab: int) -> None:
    x, weight = draw(seed, rows, 96), draw(seed + 1, vocab, 96)
    logits, best, token = head.head(x, weight)
    close(logits, F.linear(x, weight))
    last, out = torch.zeros(2, rows + 1, dtype=torch.int64, device=DEVICE)
    running = torch.arange(1, rows + 1, dtype=torch.int32, device=DEVICE)
    argmax.choose(best, token, running, last, out[:rows])
    assert out[:rows].tolist() == last[1:].tolist() == logits.argmax(-1).tolist()
    assert last[0] == 0


@examples
@given(st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4))
def test_argmax_takes_the_first_of_equals(values: list[list[int]]) -> None:
    logits = torch.tensor(values, dtype=torch.float32, device=DEVICE)
    rows = torch.arange(len(values), dtype=torch.int32, device=DEVICE)
    last, out = torch.zeros(2, len(values), dtype=torch.int64, device=DEVICE)
    argmax.argmax(logits, rows, last, out)
    assert out.tolist() == last.tolist() == [row.index(max(row)) for row in values]


def test_argmax_of_what_is_no_number() -> None:
    logits = draw(0, 3, 5003)
    logits[0], logits[1, 4000:] = math.nan, math.nan
    rows = torch.arange(3, dtype=torch.int32, device=DEVICE)
    last, out = torch.zeros(2, 3, dtype=torch.int64, device=DEVICE)
    argmax.argmax(logits, rows, last, out)
    assert out.tolist() == last.tolist() == [0, 4000, logits[2].argmax().item()]


def test_argmax_over_several_parts() -> None:
    logits = draw(0, 2, 5003)
    last, out = torch.zeros(2, 2, dtype=torch.int64, device=DEVICE)
    argmax.argmax(logits, torch.tensor([1, 0], dtype=torch.int32, device=DEVICE), last, out)
    assert out.tolist() == logits.argmax(-1).tolist() == last.flip(0).tolist()


def test_embedding_of_last_tokens() -> None:
    tokens, positions = draw(1, 50, 96), draw(2, 40, 96)
    last = torch.tensor([7, 49, 0, 3], device=DEVICE)
    rows, lengths = torch.tensor([[2, 0, 3], [1, 40, 0]], dtype=torch.int32, device=DEVICE)
    found = embed.embed_last(last, rows, lengths, tokens, positions)
    close(found, tokens[last[rows.long()]] + positions[[0, 39, 0]])


def test_keys_and_values_are_stored_where_they_belong() -> None:
    k, v = draw(1, 3, 2, 24), draw(2, 3, 2, 24)
    keys, values = torch.zeros(2, 10, 2, 24, device=DEVICE)
    store_kv.store_kv(k, v, keys, values, torch.tensor([4, -1, 9], dtype=torch.int32, device=DEVICE))
    wanted = torch.zeros(2, 10, 2, 24, device=DEVICE)
    wanted[0, [4, 9]], wanted[1, [4, 9]] = k[[0, 2]], v[[0, 2]]
    assert torch.equal(keys, wanted[0]) and torch.equal(values, wanted[1])
    assert (k[1] == 0).all() and (v[1] == 0).all()


def test_what_is_stored_in_8_bit_floats_is_given_back(exact_e4m3: None) -> None:
    k, v = draw(1, 3, 2, 24) * 100, draw(2, 3, 2, 24) / 100
    k[0, 0, 0], v[2, 1, 3] = 1e4, -500
    wanted = [torch.zeros(10, 2, 24, dtype=torch.uint8, device=DEVICE) for _ in "kv"]
    for cached, x in zip(wanted, (k, v), strict=True):
        cached[[4, 9]] = to_e4m3(x)[[0, 2]].view(torch.uint8)
    keys, values = (torch.zeros(10, 2, 24, device=DEVICE).to(E4M3) for _ in "kv")
    store_kv.store_kv(k, v, keys, values, torch.tensor([4, -1, 9], dtype=torch.int32, device=DEVICE))
    assert torch.equal(keys.view(torch.uint8), wanted[0]) and torch.equal(values.view(torch.uint8), wanted[1])
    assert torch.equal(k[[0, 2]], keys.float()[[4, 9]]) and torch.equal(v[[0, 2]], values.float()[[4, 9]])
    assert (k[1] == 0).all() and (v[1] == 0).all()


HEADS, DIM, SIZE, BLOCKS = 4, 32, 8, 20


class Step:
    """Requests with cached tokens, and one new token each; a length of 0 is padding."""

    def __init__(self, seed: int, lengths: list[int], kv_heads: int, dtype: torch.dtype) -> None:
        count = len(lengths)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
        self.keys, self.values = draw(seed, 2, BLOCKS * SIZE, kv_heads, DIM).to(dtype)
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randperm(BLOCKS, generator=generator).view(4, 5).int().to(DEVICE)
        self.rows = torch.randperm(4, generator=generator)[:count].int().to(DEVICE)
        qkv = draw(seed + 1, count, (HEADS + 2 * kv_heads) * DIM).to(dtype)
        q, k, v = qkv.split([HEADS * DIM, kv_heads * DIM, kv_heads * DIM], 1)
        self.q, self.k, self.v = (x.view(count, -1, DIM) for x in (q, k, v))

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v, self.keys, self.values, self.table, self.rows, self.lengths

    def slots(self, index: int) -> Tensor:
        t = torch.arange(int(self.lengths[index]), device=DEVICE)
        return self.table[self.rows[index].long()][t // SIZE].long() * SIZE + t % SIZE

    def attended(self) -> Tensor:
        """What every request should get, `[D, heads · dim]` float32, from the cache after the append."""
        out = []
        for index in range(len(self.lengths)):
            k, v = (
                cache.float()[self.slots(index)].repeat_interleave(HEADS // cache.shape[1], 1)
                for cache in (self.keys, self.values)
            )
            weights = torch.softmax(torch.einsum("hd,thd->ht", self.q[index].float(), k) * DIM**-0.5, -1)
            out.append(torch.einsum("ht,thd->hd", weights, v).flatten())
        return torch.stack(out)


steps = st.builds(
    Step,
    seeds,
    st.lists(st.integers(1, 5 * SIZE), min_size=1, max_size=4),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([torch.float32] if DEVICE == "cpu" else [torch.float32, torch.float16, torch.bfloat16]),
)


@examples
@given(steps, st.sampled_from([1, 2, 8]))
def test_paged_attention(step: Step, splits: int) -> None:
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[step.q.dtype]
    before = step.keys.clone()
    if splits == 1:
        got = paged_decode.paged_decode(*step.arguments, SIZE)
    else:
        means, shares = paged_decode.paged_decode_split(*step.arguments, SIZE, splits)
        weights = torch.softmax(shares * 0.6931471805599453, -1)
        got = (means * weights[..., None]).sum(2).flatten(1)
    torch.testing.assert_close(got.float(), step.attended(), rtol=tolerance, atol=tolerance)
    new = torch.stack([step.slots(index)[-1] for index in range(len(step.lengths))])
    assert torch.equal(step.keys[new], step.k) and torch.equal(step.values[new], step.v)
    untouched = torch.ones(len(before), dtype=torch.bool, device=DEVICE)
    untouched[new] = False
    assert torch.equal(step.keys[untouched], before[untouched])


@examples
@given(steps, st.sampled_from([1, 2]))
def test_paged_attention_of_8_bit_floats(exact_e4m3: None, step: Step, splits: int) -> None:
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[step.q.dtype]
    step.keys, step.values = to_e4m3(step.keys), to_e4m3(step.values)
    step.v[0, 0, 1] = 1e4
    before = step.keys.view(torch.uint8).clone()
    if splits == 1:
        got = paged_decode.paged_decode(*step.arguments, SIZE)
    else:
        means, shares = paged_decode.paged_decode_split(*step.arguments, SIZE, splits)
        weights = torch.softmax(shares * 0.6931471805599453, -1)
        got = (means * weights[..., None]).sum(2).flatten(1)
    torch.testing.assert_close(got.float(), step.attended(), rtol=tolerance, atol=tolerance)
    new = torch.stack([step.slots(index)[-1] for index in range(len(step.lengths))])
    for cache, x in ((step.keys, step.k), (step.values, step.v)):
        assert torch.equal(cache.view(torch.uint8)[new], to_e4m3(x).view(torch.uint8))
    before[new] = step.keys.view(torch.uint8)[new]
    assert torch.equal(step.keys.view(torch.uint8), before)


def test_padding_writes_nothing() -> None:
    step = Step(0, [5, 0], 2, torch.float32)
    before = step.keys.clone()
    out = paged_decode.paged_decode(*step.arguments, SIZE)
    assert out.isfinite().all()
    changed = (step.keys != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == [int(step.slots(0)[-1])]
