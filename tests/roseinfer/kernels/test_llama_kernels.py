"""The Llama family's kernels in Triton against PyTorch's operators, and the model that is made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.attention.prefill import sdpa
from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.batch import Batch, Segment
from roseinfer.e4m3 import E4M3, movable, to_e4m3
from roseinfer.kernels.cuda.gqa_decode import Heads, Rotation
from roseinfer.kernels.triton import embed
from roseinfer.kernels.triton.gated import GatedTile, gated_product
from roseinfer.kernels.triton.rms_norm import add_rms_norm_, rms_norm
from roseinfer.kernels.triton.rotate import rotate_
from roseinfer.kernels.triton.swiglu import swiglu
from roseinfer.kvcache.pool import KVPool
from roseinfer.models import config
from roseinfer.models.config import LlamaConfig
from roseinfer.models.linear import Linear
from roseinfer.models.llama import Llama
from roseinfer.models.llama_cuda import CudaLlama
from roseinfer.models.ops import Ops
from roseinfer.models.rope import Rope
from roseinfer.models.weights import Weights

from ..conftest import LLAMAS, lay_out, make_llama

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-5
OPS = Ops()
examples = settings(max_examples=15)
seeds = st.integers(0, 1000)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@examples
@given(seeds, st.integers(1, 5), st.sampled_from([96, 128, 1200]), st.integers(1, 3))
def test_norms_and_swiglu(seed: int, rows: int, width: int, parts: int) -> None:
    x, branch, gain = draw(seed, rows, width), draw(seed + 1, parts, rows, width), draw(seed + 2, width)
    close(rms_norm(x, gain, EPS), OPS.rms_norm(x, gain, EPS))
    summed = x + branch.sum(0)
    close(add_rms_norm_(x, branch, gain, EPS), OPS.rms_norm(summed, gain, EPS))
    close(x, summed)
    close(swiglu(x), OPS.swiglu(x))


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
    wanted = qkv.clone()
    wanted[:, : -heads.keys] = OPS.rotate(qkv[:, : -heads.keys], gain, EPS, turns[positions])
    rotate_(qkv.view(rows, -1), positions, heads, Rotation(turns, q_gain, k_gain, EPS), (keys, values, slots))
    wanted[slots < 0, heads.queries :] = 0
    close(qkv, wanted)
    cached = torch.zeros(2, 9, heads.keys, dim, device=DEVICE)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cached[:, slot] = wanted[row, heads.queries :].view(2, heads.keys, dim)
    close(torch.stack((keys, values)), cached)


def test_rotated_keys_are_what_is_stored_in_8_bit_floats(exact_e4m3: None) -> None:
    heads, dim = Heads(4, 2, 32), 32
    turns = Rope().table(50, dim).to(DEVICE)
    qkv = draw(1, 3, heads.queries + 2 * heads.keys, dim)
    qkv[2, -1, 3] = 1e4
    positions = torch.tensor([0, 7, 40], device=DEVICE)
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
    for side, (memory, wanted) in enumerate(zip(cache, (keys, values), strict=True)):
        assert torch.equal(memory.float()[[5, 0]], got[[0, 2], side])
        assert (got[1, side] == 0).all()
        near = to_e4m3(wanted[[0, 2]]).float()
        assert (got[[0, 2], side] == near).float().mean() > 0.98
        assert ((got[[0, 2], side] - near).abs() <= near.abs() / 8 + 2**-9).all()
        assert (memory.float()[[1, 2, 3, 4, 6, 7, 8]] == 0).all()


@examples
@given(seeds, st.integers(1, 40))
def test_gated_product(seed: int, rows: int) -> None:
    x, weight = draw(seed, rows, 64), draw(seed + 1, 2 * 48, 64) / 8
    close(gated_product(x, weight, GatedTile(16, 16, inputs=32, stages=2)), OPS.swiglu(x @ weight.t()))


def test_tiles_that_do_not_divide_a_gated_product_leave_it() -> None:
    x, weight = draw(0, 20, 1024).half(), draw(1, 6144, 1024).half()
    assert GatedTile(64, 64).takes(x, weight)
    assert not GatedTile(64, 5).takes(x, weight) and not GatedTile(64, 64).takes(x.float(), weight.float())


def test_embedding_of_last_tokens() -> None:
    tokens, last = draw(1, 50, 1500), torch.tensor([7, 49, 0, 3], device=DEVICE)
    rows = torch.tensor([2, 0, 3], dtype=torch.int32, device=DEVICE)
    assert torch.equal(embed.embed_rows(last, rows, tokens), tokens[[0, 7, 3]])


@pytest.fixture(scope="module", params=LLAMAS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("cache", [torch.float32, E4M3], ids=str)
def test_a_model_of_these_kernels_is_the_plain_one(
    folder: Path, cache: torch.dtype, exact_e4m3: None
) -> None:
    """Prompts, one of them after cached tokens, beside requests that decode; then all of them decode."""
    shape = config.read(folder)
    assert isinstance(shape, LlamaConfig)
    shape = replace(shape, layers=2)
    made = [
        kind(shape, Weights(folder), DEVICE, torch.float32, linear=Linear, ops=OPS)
        for kind in (Llama, CudaLlama)
    ]
    size, counts, contexts = 8, [5, 11, 1, 1], [0, 9, 20, 3]
    rng = np.random.default_rng(0)
    blocks, table, slots = lay_out([c + n + 1 for c, n in zip(contexts, counts, strict=True)], size, rng)
    pools = [KVPool(shape.kv_shape(cache), blocks, size, DEVICE) for _ in made]
    attentions = TorchPagedAttention(pools[0]), CudaPagedAttention(pools[1], sdpa)
    for index, (context, own) in enumerate(zip(contexts, slots, strict=True)):
        cached = draw(index, 2, context, shape.kv_heads, shape.head_dim)
        for pool in pools:
            for layer in range(shape.layers):
                for memory, rows in zip(pool.layer(layer), cached, strict=True):
                    movable(memory)[own[:context]] = movable(rows.to(cache))
    prompts = _batch(counts, contexts, slots, table, size, decoding=2)
    lengths = [c + n for c, n in zip(contexts, counts, strict=True)]
    decodes = _batch([1] * 4, lengths, slots, table, size, decoding=4)
    for batch in (prompts, decodes):
        tokens = torch.from_numpy(rng.integers(0, shape.vocab_size, len(batch.tokens))).to(DEVICE)
        positions = torch.from_numpy(batch.positions).to(DEVICE)
        hidden = []
        for model, attention in zip(made, attentions, strict=True):
            attention.begin(batch)
            hidden.append(model.forward(tokens, positions, attention)[batch.last_rows])
        logits = [model.logits(rows) for model, rows in zip(made, hidden, strict=True)]
        close(logits[1], logits[0])
        last = torch.zeros(5, dtype=torch.int64, device=DEVICE)
        out = torch.zeros(len(batch.last_rows), dtype=torch.int64, device=DEVICE)
        rows = torch.arange(len(out), dtype=torch.int32, device=DEVICE)
        made[1].choose(hidden[1], rows, last, out)
        assert out.tolist() == last[: len(out)].tolist() == logits[0].argmax(-1).tolist()
    for memories in zip(*(pool.layer(shape.layers - 1) for pool in pools), strict=True):
        close(*(memory.float() for memory in memories))


def _batch(
    counts: list[int],
    contexts: list[int],
    slots: list[np.ndarray],
    table: np.ndarray,
    size: int,
    *,
    decoding: int,
) -> Batch:
    starts = np.cumsum([0, *counts])
    prompts = len(counts) - decoding
    return Batch(
        tokens=np.zeros(starts[-1], dtype=np.int64),
        positions=np.concatenate([np.arange(c, c + n) for c, n in zip(contexts, counts, strict=True)]),
        cache_slots=np.concatenate(
            [own[c : c + n] for own, c, n in zip(slots, contexts, counts, strict=True)]
        ),
        segments=tuple(
            Segment(int(starts[i]), counts[i], contexts[i], table[i, : -(-contexts[i] // size)], i)
            for i in range(prompts)
        ),
        decode_lengths=np.array([c + 1 for c in contexts[prompts:]], dtype=np.int64),
        last_rows=starts[1:] - 1,
        requests=np.arange(len(counts)),
        block_table=table,
        block_size=size,
    )


def test_every_step_of_decoding_starts_from_the_last_token(folder: Path) -> None:
    shape = config.read(folder)
    assert isinstance(shape, LlamaConfig)
    shape = replace(shape, layers=1)
    model = CudaLlama(shape, Weights(folder), DEVICE, torch.float32, linear=Linear, ops=OPS)
    pool = KVPool(shape.kv_shape(torch.float32), 4, 8, DEVICE)
    attention = CudaPagedAttention(pool, sdpa)
    slots = [np.arange(16, 24), np.arange(0, 8)]
    batch = _batch([1, 1], [2, 5], slots, np.array([[2], [0]]), 8, decoding=2)
    last = torch.tensor([9, 4, 7], device=DEVICE)
    rows, lengths = torch.tensor([[2, 0], [3, 6]], dtype=torch.int32, device=DEVICE)
    attention.begin(batch)
    got = model.forward_last(last, rows, lengths, attention)
    positions = torch.tensor([2, 5], device=DEVICE)
    close(got, model.forward(last[[2, 0]], positions, attention))
