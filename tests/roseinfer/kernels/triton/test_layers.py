"""Embeddings, norms, rotary embeddings and the cache's keys and values, against PyTorch's operators."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import roseinfer.kernels
from roseinfer.e4m3 import E4M3, movable, to_e4m3
from roseinfer.kernels.cuda.gqa_decode import Heads, Rotation
from roseinfer.kernels.triton import embed, norm, store_kv
from roseinfer.kernels.triton.rms_norm import add_rms_norm_, rms_norm
from roseinfer.kernels.triton.rotate import rotate_
from roseinfer.kernels.triton.swiglu import swiglu
from roseinfer.models.ops import Ops
from roseinfer.models.rope import Rope
from tests.roseinfer.kernels.triton.conftest import DEVICE, EPS, close, draw, examples, seeds, storable


def test_embedding_of_last_tokens() -> None:
    tokens, positions = draw(1, 50, 96), draw(2, 40, 96)
    last = torch.tensor([7, 49, 0, 3], device=DEVICE)
    rows, lengths = torch.tensor([[2, 0, 3], [1, 40, 0]], dtype=torch.int32, device=DEVICE)
    embedded = embed.embed_last(last, rows, lengths, tokens, positions)
    close(embedded, tokens[last[rows.long()]] + positions[[0, 39, 0]])


def test_embedding_of_rows() -> None:
    tokens, last = draw(1, 50, 1500), torch.tensor([7, 49, 0, 3], device=DEVICE)
    rows = torch.tensor([2, 0, 3], dtype=torch.int32, device=DEVICE)
    assert torch.equal(embed.embed_rows(last, rows, tokens), tokens[[0, 7, 3]])


OPS = Ops()


@examples
@given(seeds, st.integers(1, 5), st.sampled_from([96, 128, 200, 1200]), st.integers(1, 3))
def test_norms_and_swiglu(seed: int, rows: int, width: int, parts: int) -> None:
    x, branch = draw(seed, rows, width), draw(seed + 1, parts, rows, width)
    bias, gain, shift = draw(seed + 2, 3, width)
    close(swiglu(x), OPS.swiglu(x))
    close(rms_norm(x, gain, EPS), OPS.rms_norm(x, gain, EPS))
    close(norm.norm(x, gain, shift, EPS), F.layer_norm(x, (width,), gain, shift, EPS))
    summed, other = x + branch.sum(0), x.clone()
    close(add_rms_norm_(x, branch, gain, EPS), OPS.rms_norm(summed, gain, EPS))
    close(x, summed)
    summed += bias
    expected = F.layer_norm(summed, (width,), gain, shift, EPS)
    close(norm.add_norm_(other, branch, bias, gain, shift, EPS), expected)
    close(other, summed)


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
    queries, keys = exact.split([heads.queries, heads.keys], 1)
    values = qkv[:, -heads.keys :].clone()
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


@pytest.mark.parametrize("dtype", [torch.float32, E4M3])
def test_what_is_stored_is_given_back(dtype: torch.dtype) -> None:
    """Also where it is rounded; what has no slot becomes zeros."""
    k, v = storable(draw(1, 3, 2, 24) * 100), storable(draw(2, 3, 2, 24) / 100)
    k[0, 0, 0], v[2, 1, 3] = 1e4, -500
    rounded = [to_e4m3(x) if dtype == E4M3 else x.clone() for x in (k, v)]
    keys, values = (torch.zeros(10, 2, 24, device=DEVICE).to(dtype) for _ in "kv")
    store_kv.store_kv(k, v, keys, values, torch.tensor([4, -1, 9], dtype=torch.int32, device=DEVICE))
    for memory, exact, x in zip((keys, values), rounded, (k, v), strict=True):
        expected = movable(torch.zeros(10, 2, 24, device=DEVICE).to(dtype))
        expected[[4, 9]] = movable(exact)[[0, 2]]
        assert torch.equal(movable(memory), expected)
        assert torch.equal(x[[0, 2]], memory.float()[[4, 9]]) and not x[1].any()


FILES = sorted((Path(roseinfer.kernels.__file__).parent / "triton").glob("*.py"))
#: Arguments that change from step to step.
CHANGING = {"rows", "count", "prompts"}


def test_what_changes_between_steps_is_not_specialised() -> None:
    kernels = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("_"):
                continue
            decorators = [d for d in node.decorator_list if "triton.jit" in ast.unparse(d)]
            changing = {argument.arg for argument in node.args.args} & CHANGING
            if not decorators or not changing:
                continue
            kernels.add(node.name)
            excluded = {c.value for c in ast.walk(decorators[0]) if isinstance(c, ast.Constant)}
            assert changing <= excluded, f"{path.name}: {node.name} specialises {changing - excluded}"
    launched = {"_norm", "_linear", "_pipelined_linear", "_prefill_attention", "_read_slot", "_write_slot"}
    assert kernels >= launched
