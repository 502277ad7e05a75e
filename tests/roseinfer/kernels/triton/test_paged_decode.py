"""Attention of requests that decode, against the same written out in PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from roseinfer.e4m3 import movable, to_e4m3
from roseinfer.kernels.triton import paged_decode
from tests.roseinfer.kernels.triton.conftest import DEVICE, draw, examples, seeds, storable

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
        """The attention of every request, `[D, heads · dim]`, from the cache after the append."""
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
    st.sampled_from(
        [torch.float32] if DEVICE.type == "cpu" else [torch.float32, torch.float16, torch.bfloat16]
    ),
)


@pytest.mark.parametrize("fp8", [False, True])
@examples
@given(steps, st.sampled_from([1, 2, 8]))
def test_paged_attention(fp8: bool, step: Step, splits: int) -> None:
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[step.q.dtype]
    if fp8:
        step.keys, step.values = to_e4m3(step.keys), to_e4m3(step.values)
        step.k, step.v = storable(step.k), storable(step.v)
        step.v[0, 0, 1] = 1e4
    before = movable(step.keys).clone()
    if splits == 1:
        attended = paged_decode.paged_decode(*step.arguments, SIZE)
    else:
        means, shares = paged_decode.paged_decode_split(*step.arguments, SIZE, splits)
        weights = torch.softmax(shares * 0.6931471805599453, -1)
        attended = (means * weights[..., None]).sum(2).flatten(1)
    torch.testing.assert_close(attended.float(), step.attended(), rtol=tolerance, atol=tolerance)
    new = torch.stack([step.slots(index)[-1] for index in range(len(step.lengths))])
    for cache, x in ((step.keys, step.k), (step.values, step.v)):
        assert torch.equal(movable(cache)[new], movable(to_e4m3(x) if fp8 else x))
    before[new] = movable(step.keys)[new]
    assert torch.equal(movable(step.keys), before)


def test_padding_writes_nothing() -> None:
    step = Step(0, [5, 0], 2, torch.float32)
    before = step.keys.clone()
    out = paged_decode.paged_decode(*step.arguments, SIZE)
    assert out.isfinite().all()
    changed = (step.keys != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == [int(step.slots(0)[-1])]
