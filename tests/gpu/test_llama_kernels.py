"""The Llama family's kernels in CUDA C++ against PyTorch's operators in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from roseinfer.attention.torch_paged import gather
from roseinfer.e4m3 import movable, to_e4m3
from roseinfer.kernels.cuda import stream
from roseinfer.kernels.cuda.gqa_decode import Heads, How, Rotation, gqa_decode
from roseinfer.kernels.triton.paged_decode import paged_decode
from roseinfer.kernels.triton.rotate import rotate_
from roseinfer.kernels.triton.store_kv import store_kv
from roseinfer.models.fp8 import quantize
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
    st.sampled_from(DTYPES), st.booleans(), st.booleans(),
    st.sampled_from(["plain", "bias", "residual", "gated"]),
)  # fmt: skip
def test_products(seed, rows, size, dtype, eight, normed, kind):
    torch.manual_seed(seed)
    inputs, outputs = size
    gated = kind == "gated"
    weight = draw(outputs, inputs, scale=inputs**-0.5).to(dtype)
    x, gain = draw(rows, inputs, scale=3).to(dtype), draw(inputs).to(dtype)
    wide_weight, scales = weight.float(), None
    if eight and dtype == torch.bfloat16:
        weight, scales = (rounded := quantize(weight)).values, rounded.scales
        wide_weight = weight.float() * scales
    if not stream.takes(x, weight, gated=gated, normed=normed):
        some = (normed and inputs == 12288) or (scales is not None and inputs == 896)
        assert some or rows > stream.FEW_ROWS
        if not stream.takes(x, weight, gated=gated):
            return
        normed = False
    bias, residual = draw(outputs).to(dtype), draw(rows, outputs).to(dtype)
    wide = x.float()
    wanted = F.linear(OPS.rms_norm(wide, gain.float(), EPS) if normed else wide, wide_weight)
    if kind in ("bias", "gated"):
        wanted += bias.float()
    wanted = OPS.swiglu(wanted) if gated else wanted + residual.float() * (kind == "residual")
    got = stream.product(
        x, weight, bias if kind in ("bias", "gated") else None, norm=(gain, EPS) if normed else None,
        residual=residual if kind == "residual" else None, gated=gated, scales=scales,
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

    def __init__(
        self, heads: Heads, dtype: torch.dtype, lengths: list[int], *, normed: bool, fp8: bool = False
    ) -> None:
        count, self.heads, self.normed = len(lengths), heads, normed
        width = (heads.queries + 2 * heads.keys) * heads.dim
        self.qkv = draw(count, width, scale=2).to(dtype)
        self.gains = (draw(heads.dim).to(dtype), draw(heads.dim).to(dtype)) if normed else (None, None)
        self.turns = Rope(theta=1e4).table(BLOCKS * SIZE, heads.dim).cuda()
        keys, values = draw(2, count * BLOCKS * SIZE, heads.keys, heads.dim).to(dtype)
        self.cache = (to_e4m3(keys), to_e4m3(values)) if fp8 else (keys, values)
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
            k, v = (
                gather(cache, self.slots(index), torch.float32).repeat_interleave(group, 1)
                for cache in self.cache
            )
            weights = torch.softmax(torch.einsum("hd,thd->ht", q[index], k) * self.heads.dim**-0.5, -1)
            out.append(torch.einsum("ht,thd->hd", weights, v).flatten())
        return torch.stack(out)


@examples
@given(
    st.integers(0, 1000), st.sampled_from([Heads(32, 8, 128), Heads(16, 8, 128), Heads(32, 8, 64),
                                           Heads(64, 8, 128), Heads(14, 2, 64), Heads(4, 4, 128),
                                           Heads(16, 4, 256), Heads(16, 2, 256)]),
    st.sampled_from(DTYPES), st.lists(st.integers(1, BLOCKS * SIZE), min_size=1, max_size=9), st.booleans(),
    st.sampled_from([None, How(), How(8, 1, 8), How(4, 3, 2), How(2, 2, 4)]), st.booleans(),
)  # fmt: skip
def test_attention(seed, heads, dtype, lengths, normed, how, fp8):
    """With a cache in 8-bit floats, too: attention meets what is in it, that of the new token included."""
    torch.manual_seed(seed)
    step = Step(heads, dtype, lengths, normed=normed, fp8=fp8)
    before = [movable(cache).clone() for cache in step.cache]
    got = step.run(how)
    bound = 3e-3 if dtype == torch.float16 else 2e-2
    assert off(got, step.attended()) < bound
    new = torch.stack([step.slots(index)[-1] for index in range(len(lengths))])
    for cache, wanted in zip(step.cache, step.rotated()[1:], strict=True):
        stored = gather(cache, new, torch.float32)
        if fp8:  # the nearest, but where the kernel's own halves are next to torch's
            assert (stored == to_e4m3(wanted.to(dtype)).float()).float().mean() > 0.95
        assert off(stored, wanted) < (0.04 if fp8 else bound)
    for cache, old in zip(step.cache, before, strict=True):
        movable(cache)[new] = old[new]
        assert torch.equal(movable(cache), old)  # nothing else was written
    assert torch.equal(step.run(how), got)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_8_bit_floats_cannot_hold_is_their_largest(dtype: torch.dtype) -> None:
    step = Step(Heads(8, 2, 128), dtype, [40, 1], normed=False, fp8=True)
    step.qkv[0, -128], step.qkv[1, -1] = 9000, -460
    got = step.run(None)
    assert off(got, step.attended()) < 2e-2
    new = torch.stack([step.slots(0)[-1], step.slots(1)[-1]])
    stored = gather(step.cache[1], new, torch.float32)[:, 1]
    assert stored[0, 0] == 448 and stored[1, -1] == -448


@pytest.mark.parametrize("dtype", DTYPES)
def test_prompts_are_stored_as_they_are_attended_to(dtype: torch.dtype) -> None:
    """Triton's kernels, whose rounding is that of `to_e4m3`."""
    heads = Heads(8, 2, 128)
    turns = Rope(theta=1e4).table(64, heads.dim).cuda()
    qkv = draw(40, 12, 128, scale=3).to(dtype)
    qkv[3, -1, 5] = 2000
    positions, slots = torch.arange(40, device="cuda"), torch.randperm(64, device="cuda")[:40].int()
    slots[7] = -1
    kept = (slots >= 0).nonzero().flatten()
    for stored in (False, True):
        before = qkv.float()
        cache = [to_e4m3(torch.zeros(64, 2, 128, device="cuda")) for _ in "kv"]
        if stored:
            store_kv(qkv[:, 8:10], qkv[:, 10:], cache[0], cache[1], slots)
        else:
            rotate_(
                qkv.view(40, -1),
                positions,
                heads,
                Rotation(turns, None, None, EPS),
                (cache[0], cache[1], slots),
            )
        for memory, part in zip(cache, (slice(8, 10), slice(10, 12)), strict=True):
            found = gather(memory, slots[kept], torch.float32)
            assert torch.equal(found, qkv[kept, part].float())
            if stored or part.start == 10:
                assert torch.equal(found, to_e4m3(before[kept, part]).float())
        assert (qkv[7, 8:] == 0).all()


@examples
@given(
    st.integers(0, 1000), st.sampled_from([torch.float32, *DTYPES]), st.sampled_from([32, 64, 80]),
    st.lists(st.integers(1, BLOCKS * SIZE), min_size=1, max_size=9),
)  # fmt: skip
def test_attention_of_other_heads_in_8_bit_floats(seed, dtype, dim, lengths):
    """Triton's kernel, which has them all."""
    torch.manual_seed(seed)
    step = Step(Heads(6, 3, dim), dtype, lengths, normed=False, fp8=True)
    q, k, v = step.qkv.view(len(lengths), -1, dim).split_with_sizes([6, 3, 3], 1)
    keys, values = step.cache
    got = paged_decode(q, k, v, keys, values, step.table, step.rows, step.lengths, SIZE)
    step.rotated = lambda: (q.float(), k.float(), v.float())  # type: ignore[method-assign]
    assert off(got, step.attended()) < {torch.float32: 1e-4, torch.float16: 3e-3}.get(dtype, 2e-2)
    new = torch.stack([step.slots(index)[-1] for index in range(len(lengths))])
    for cache, wanted in zip(step.cache, (k, v), strict=True):
        assert torch.equal(gather(cache, new, torch.float32), to_e4m3(wanted).float())


def test_padding_writes_nothing() -> None:
    step = Step(Heads(8, 2, 128), torch.bfloat16, [5, 0], normed=True)
    before = step.cache[0].clone()
    assert step.run(None).isfinite().all()
    changed = (step.cache[0] != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == [int(step.slots(0)[-1])]
