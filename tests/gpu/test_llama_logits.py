"""Logits of models people serve, in half precision and in 8-bit floats, beside float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import multiprocessing

from roseinfer.attention.base import Attention
from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.attention.prefill_backends import choose
from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.batch import Batch, Segment
from roseinfer.e4m3 import E4M3
from roseinfer.kvcache.pool import KVPool
from roseinfer.models import config
from roseinfer.models.config import LlamaConfig
from roseinfer.models.fp8 import Fp8Linear
from roseinfer.models.linear import Linear
from roseinfer.models.llama import Llama
from roseinfer.models.llama_cuda import CudaLlama, Fp8CudaLlama
from roseinfer.models.load import load
from roseinfer.models.ops import Ops
from roseinfer.models.shard import Shard
from rosemodels import llama

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

SIZE, BLOCKS = 16, 32
DEVICE = torch.device("cuda")
LENGTHS = [300, 17, 1, 64]


class Drawn:
    """Stands where safetensors files would: bfloat16 tensors, the same for every model."""

    def __init__(self, shape: llama.Shape) -> None:
        self._stds = {tensor.name: tensor.std for tensor in llama.tensors(shape)}
        self._seeds = {name: seed for seed, name in enumerate(self._stds)}

    def __contains__(self, name: str) -> bool:
        return name in self._stds

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        torch.manual_seed(self._seeds[name])
        std = self._stds[name]
        drawn = torch.randn(shape, device=DEVICE)
        return (1 + 0.1 * drawn if std is None else drawn * std).bfloat16()


def batch_of(prompts: bool) -> Batch:
    """All of the prompts, or one more token of each."""
    counts = LENGTHS if prompts else [1] * len(LENGTHS)
    contexts = [0] * len(LENGTHS) if prompts else LENGTHS
    starts = np.cumsum([0, *counts])
    table = np.arange(len(LENGTHS) * BLOCKS).reshape(-1, BLOCKS)
    positions = np.concatenate([np.arange(c, c + n) for c, n in zip(contexts, counts, strict=True)])
    slots = [
        i * BLOCKS * SIZE + np.arange(c, c + n) for i, (c, n) in enumerate(zip(contexts, counts, strict=True))
    ]
    segments = [Segment(int(starts[i]), n, 0, table[i, :0], i) for i, n in enumerate(counts)]
    return Batch(
        tokens=np.zeros(starts[-1], dtype=np.int64), positions=positions, cache_slots=np.concatenate(slots),
        segments=tuple(segments) if prompts else (),
        decode_lengths=np.array([] if prompts else [c + 1 for c in LENGTHS], dtype=np.int64),
        last_rows=starts[1:] - 1, requests=np.arange(len(LENGTHS)), block_table=table, block_size=SIZE,
    )  # fmt: skip


def logits_of(model: Llama, attention: Attention) -> torch.Tensor:
    found = []
    for prompts in (True, False):
        batch = batch_of(prompts)
        rng = np.random.default_rng(prompts)
        tokens = torch.from_numpy(rng.integers(0, 50_000, len(batch.tokens))).cuda()
        attention.begin(batch)
        hidden = model.forward(tokens, torch.from_numpy(batch.positions).cuda(), attention)
        found.append(model.logits(hidden[torch.from_numpy(batch.last_rows).cuda()]).float())
    return torch.cat(found)


def attention_of(model: Llama, dtype: torch.dtype, cache: torch.dtype | None = None) -> Attention:
    pool = KVPool(model.config.kv_shape(cache or dtype), len(LENGTHS) * BLOCKS, SIZE, DEVICE)
    if not isinstance(model, CudaLlama):
        return TorchPagedAttention(pool)
    return CudaPagedAttention(pool, choose(None, model.config.head_dim, dtype, DEVICE).attend)


def distance(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Root mean square of the difference over the spread of `wanted`, of each row."""
    return ((logits - wanted) / wanted.std(-1, keepdim=True)).square().mean(-1).sqrt()


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-8b"])
@torch.inference_mode()
def test_logits_beside_float32(name: str) -> None:
    named = llama.SHAPES[name]
    shape = config.parse(llama.config(named))
    assert isinstance(shape, LlamaConfig)
    weights = Drawn(named)

    def run(
        kind: type[Llama], dtype: torch.dtype, linear: type[Linear] = Linear, cache: torch.dtype | None = None
    ) -> torch.Tensor:
        model = kind(shape, weights, DEVICE, dtype, linear=linear, ops=Ops(), head=Linear)  # type: ignore[arg-type]
        return logits_of(model, attention_of(model, dtype, cache))

    wanted = run(Llama, torch.float32)
    for kind, dtype, linear, cache, bound in (
        (CudaLlama, torch.bfloat16, Linear, None, 0.1),
        (CudaLlama, torch.float16, Linear, None, 0.02),
        (Llama, torch.float32, Linear, E4M3, 0.4),
        (CudaLlama, torch.bfloat16, Linear, E4M3, 0.4),
        (Fp8CudaLlama, torch.bfloat16, Fp8Linear, None, 0.8),
        (Fp8CudaLlama, torch.bfloat16, Fp8Linear, E4M3, 0.9),
    ):
        off = distance(run(kind, dtype, linear, cache), wanted)
        print(f"{name} {dtype} {linear.name} {cache}: {off.tolist()}")
        assert off.max() < bound, (dtype, linear.name, cache, off.tolist())
        torch.cuda.empty_cache()


def loaded(name: str, dtype: torch.dtype, shard: Shard | None = None) -> Llama:
    model = load(f"random:{name}", DEVICE, dtype, fused=dtype is not torch.float32, shard=shard)
    assert isinstance(model, Llama)
    return model


@torch.inference_mode()
def keep_logits(rank: int, ranks: int, name: str, file: Path, out: Path) -> None:
    """Write to `out` the logits of a model that `ranks` GPUs share, which rank 0 has."""
    torch.cuda.set_device(rank)
    model = loaded(name, torch.bfloat16, Shard(rank, ranks, first_embeds=True))
    model.ranks.room(sum(LENGTHS), len(LENGTHS))
    model.ranks.connect(file, 120)
    logits = logits_of(model, attention_of(model, torch.bfloat16))
    if rank == 0:
        torch.save(logits.cpu(), out)
    torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-8b"])
def test_two_gpus_are_as_exact_as_one(name: str, tmp_path: Path) -> None:
    loaded_by = (2, name, tmp_path / "ranks", tmp_path / "logits")
    multiprocessing.spawn(keep_logits, loaded_by, 2)  # type: ignore[attr-defined,no-untyped-call]
    shared = torch.load(tmp_path / "logits").cuda()
    found = []
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            model = loaded(name, dtype)
            found.append(logits_of(model, attention_of(model, dtype)))
            del model
            torch.cuda.empty_cache()
    wanted, alone = found
    for what, off in (
        ("two from float32", distance(shared, wanted)),
        ("one from float32", distance(alone, wanted)),
        ("two from one", distance(shared, alone)),
    ):
        print(f"{name} {what}: {off.tolist()}")
        assert off.max() < 0.1, (what, off.tolist())
