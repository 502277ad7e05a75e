"""Rotary embeddings of queries and keys, and the cache that takes them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.e4m3 import E4M3, to_e4m3
from roseinfer.kernels.cuda.gqa_decode import Heads, Rotation
from roseinfer.kernels.triton.rotate import rotate_
from roseinfer.models.ops import Ops
from roseinfer.models.rope import Rope
from tests.roseinfer.kernels.triton.conftest import DEVICE, EPS, close, draw, examples, seeds, storable

OPS = Ops()


@examples
@given(
    seeds, st.integers(1, 4), st.sampled_from([(4, 2), (3, 1), (6, 6)]), st.sampled_from([32, 48, 64]),
    st.booleans(),
)  # fmt: skip
def test_rotate_and_store(seed: int, rows: int, shape: tuple[int, int], dim: int, normed: bool) -> None:
    heads = Heads(*shape, dim)
    qkv = draw(seed, rows, heads.queries + 2 * heads.keys, dim)
    q_gain, k_gain = draw(seed + 1, 2, dim) if normed else (None, None)
    turns = Rope().table(50, dim).to(DEVICE)
    positions = torch.randint(0, 50, (rows,), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    slots = torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:rows].int().to(DEVICE) - 1
    keys, values = torch.zeros(2, 9, heads.keys, dim, device=DEVICE)
    gain = None
    if q_gain is not None and k_gain is not None:
        gain = torch.cat((q_gain.expand(heads.queries, dim), k_gain.expand(heads.keys, dim)))
    expected = qkv.clone()
    expected[:, : -heads.keys] = OPS.rotate(qkv[:, : -heads.keys], gain, EPS, turns[positions])
    rotate_(qkv.view(rows, -1), positions, heads, Rotation(turns, q_gain, k_gain, EPS), (keys, values, slots))
    expected[slots < 0, heads.queries :] = 0
    close(qkv, expected)
    cached = torch.zeros(2, 9, heads.keys, dim, device=DEVICE)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cached[:, slot] = expected[row, heads.queries :].view(2, heads.keys, dim)
    close(torch.stack((keys, values)), cached)


def test_rotated_keys_are_what_is_stored_in_8_bit_floats() -> None:
    heads, dim = Heads(4, 2, 32), 32
    turns = Rope().table(50, dim).to(DEVICE)
    qkv = storable(draw(1, 3, heads.queries + 2 * heads.keys, dim))
    qkv[2, -1, 3] = 1e4
    positions = torch.tensor([0, 7, 40], device=DEVICE)
    if DEVICE.type == "cpu":
        positions[:] = 0  # keys that are turned are no 8-bit floats: see `storable`
    exact = OPS.rotate(qkv[:, : -heads.keys], None, EPS, turns[positions])
    queries, keys, values = (
        exact[:, : heads.queries],
        exact[:, heads.queries :],
        qkv[:, -heads.keys :].clone(),
    )
    cache = [torch.zeros(9, heads.keys, dim, device=DEVICE).to(E4M3) for _ in "kv"]
    slots = torch.tensor([5, -1, 0], dtype=torch.int32, device=DEVICE)
    rotate_(qkv.view(3, -1), positions, heads, Rotation(turns, None, None, EPS), (cache[0], cache[1], slots))
    close(qkv[:, : heads.queries], queries)
    got = qkv[:, heads.queries :].view(3, 2, heads.keys, dim)
    for side, (memory, expected) in enumerate(zip(cache, (keys, values), strict=True)):
        assert torch.equal(memory.float()[[5, 0]], got[[0, 2], side])
        assert (got[1, side] == 0).all()
        near = to_e4m3(expected[[0, 2]]).float()
        assert (got[[0, 2], side] == near).float().mean() > 0.98
        assert ((got[[0, 2], side] - near).abs() <= near.abs() / 8 + 2**-9).all()
        assert (memory.float()[[1, 2, 3, 4, 6, 7, 8]] == 0).all()
