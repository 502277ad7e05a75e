"""The Llama family's kernels in CUDA C++ against PyTorch's operators in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from roseinfer.kernels.cuda import stream
from roseinfer.kernels.cuda.gqa_decode import Heads, How, Rotation, gqa_decode
from roseinfer.models.ops import Ops
from roseinfer.models.rope import Rope

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

EPS, SIZE, BLOCKS = 1e-6, 16, 80
DTYPES = [torch.float16, torch.bfloat16]
OPS = Ops()
examples = settings(max_examples=25)


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, device="cuda") * scale


def off(got: Tensor, wanted: Tensor) -> float:
    """Relative error in the Euclidean norm; NaN counts as 1."""
    return float(((got.float() - wanted).norm() / wanted.norm()).nan_to_num(1.0))


@examples
@given(
    st.integers(0, 1000), st.integers(1, stream.MAX_ROWS),
    st.sampled_from([(1024, 512), (2048, 1024), (896, 1152), (4096, 6144), (3072, 1024), (12288, 4096)]),
    st.sampled_from(DTYPES), st.booleans(), st.sampled_from(["plain", "bias", "residual", "gated"]),
)  # fmt: skip
def test_products(
    seed: int, rows: int, size: tuple[int, int], dtype: torch.dtype, normed: bool, kind: str
) -> None:
    torch.manual_seed(seed)
    inputs, outputs = size
    gated = kind == "gated"
    weight = draw(outputs, inputs, scale=inputs**-0.5).to(dtype)
    x, gain = draw(rows, inputs, scale=3).to(dtype), draw(inputs).to(dtype)
    if not stream.takes(x, weight, gated=gated, normed=normed):
        assert normed and inputs == 12288
        normed = False
    bias, residual = draw(outputs).to(dtype), draw(rows, outputs).to(dtype)
    wide = x.float()
    wanted = F.linear(OPS.rms_norm(wide, gain.float(), EPS) if normed else wide, weight.float())
    if kind in ("bias", "gated"):
        wanted += bias.float()
    wanted = OPS.swiglu(wanted) if gated else wanted + residual.float() * (kind == "residual")
    got = stream.product(
        x, weight, bias if kind in ("bias", "gated") else None, norm=(gain, EPS) if normed else None,
        residual=residual if kind == "residual" else None, gated=gated,
    )  # fmt: skip
    assert got.shape == wanted.shape
    assert off(got, wanted) < (2e-3 if dtype == torch.float16 else 1e-2)


def test_products_beyond_the_range_of_halves() -> None:
    """A gain so large that an element overflows fp16 before the norm, as in models with outliers."""
    x, gain = draw(3, 1024).half(), draw(1024).half()
    x[:, 7], gain[7] = 20_000, 40
    weight = draw(512, 1024, scale=1 / 32).half()
    got = stream.product(x, weight, norm=(gain, EPS))
    assert off(got, F.linear(OPS.rms_norm(x.float(), gain.float(), EPS), weight.float())) < 4e-3


class Step:
    """Requests with cached tokens; the last `free` lines of the block table belong to no request."""

    def __init__(self, heads: Heads, dtype: torch.dtype, lengths: list[int], *, normed: bool) -> None:
        count, self.heads, self.normed = len(lengths), heads, normed
        width = (heads.queries + 2 * heads.keys) * heads.dim
        self.qkv = draw(count, width, scale=2).to(dtype)
        self.gains = (draw(heads.dim).to(dtype), draw(heads.dim).to(dtype)) if normed else (None, None)
        self.turns = Rope(theta=1e4).table(BLOCKS * SIZE, heads.dim).cuda()
        keys, values = draw(2, count * BLOCKS * SIZE, heads.keys, heads.dim).to(dtype)
        self.cache = keys, values
        self.table = torch.randperm(count * BLOCKS, device="cuda").int().view(count, BLOCKS)
        self.rows = torch.randperm(count, device="cuda").int()
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")

    def run(self, how: How | None) -> Tensor:
        rotation = Rotation(self.turns, *self.gains, EPS)
        return gqa_decode(
            self.qkv, self.heads, rotation, self.cache, self.table, self.rows, self.lengths, SIZE,
            how,
        )  # fmt: skip

    def slots(self, index: int) -> Tensor:
        t = torch.arange(int(self.lengths[index]), device="cuda")
        return self.table[self.rows[index].long()][t // SIZE].long() * SIZE + t % SIZE

    def rotated(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values in float32."""
        heads = self.heads
        qkv = self.qkv.float().view(len(self.qkv), -1, heads.dim)
        gain = None
        if self.normed:
            q_gain, k_gain = (gain.float() for gain in self.gains)
            gain = torch.cat((q_gain.expand(heads.queries, -1), k_gain.expand(heads.keys, -1)))
        positions = (self.lengths - 1).clamp(min=0)
        qk = OPS.rotate(qkv[:, : -heads.keys], gain, EPS, self.turns[positions])
        return qk[:, : heads.queries], qk[:, heads.queries :], qkv[:, -heads.keys :]

    def attended(self) -> Tensor:
        """Run it first: new keys and values are taken from the cache."""
        q, group = self.rotated()[0], self.heads.queries // self.heads.keys
        out = []
        for index in range(len(q)):
            k, v = (c[self.slots(index)].float().repeat_interleave(group, 1) for c in self.cache)
            weights = torch.softmax(torch.einsum("hd,thd->ht", q[index], k) * self.heads.dim**-0.5, -1)
            out.append(torch.einsum("ht,thd->hd", weights, v).flatten())
        return torch.stack(out)


@examples
@given(
    st.integers(0, 1000), st.sampled_from([Heads(32, 8, 128), Heads(16, 8, 128), Heads(32, 8, 64),
                                           Heads(64, 8, 128), Heads(14, 2, 64), Heads(4, 4, 128)]),
    st.sampled_from(DTYPES), st.lists(st.integers(1, BLOCKS * SIZE), min_size=1, max_size=9), st.booleans(),
    st.sampled_from([None, How(), How(8, 1, 8), How(4, 3, 2), How(2, 2, 4)]),
)  # fmt: skip
def test_attention(
    seed: int, heads: Heads, dtype: torch.dtype, lengths: list[int], normed: bool, how: How | None
) -> None:
    torch.manual_seed(seed)
    step = Step(heads, dtype, lengths, normed=normed)
    before = [cache.clone() for cache in step.cache]
    got = step.run(how)
    bound = 3e-3 if dtype == torch.float16 else 2e-2
    assert off(got, step.attended()) < bound
    new = torch.stack([step.slots(index)[-1] for index in range(len(lengths))])
    for cache, wanted in zip(step.cache, step.rotated()[1:], strict=True):
        assert off(cache[new], wanted) < bound
    for cache, old in zip(step.cache, before, strict=True):
        cache[new] = old[new]
        assert torch.equal(cache, old)  # nothing else was written
    assert torch.equal(step.run(how), got)


def test_padding_writes_nothing() -> None:
    step = Step(Heads(8, 2, 128), torch.bfloat16, [5, 0], normed=True)
    before = step.cache[0].clone()
    assert step.run(None).isfinite().all()
    changed = (step.cache[0] != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == [int(step.slots(0)[-1])]
