"""Logits of models people serve, in half precision and in 8-bit floats, beside float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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
from roseinfer.models.llama_cuda import CudaLlama
from roseinfer.models.llama_fp8_cuda import Fp8CudaLlama
from roseinfer.models.ops import Ops
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
        pool = KVPool(shape.kv_shape(cache or dtype), len(LENGTHS) * BLOCKS, SIZE, DEVICE)
        attention: Attention = TorchPagedAttention(pool)
        if kind is not Llama:
            attention = CudaPagedAttention(pool, choose(None, shape.head_dim, dtype, DEVICE).attend)
        return logits_of(model, attention)

    wanted = run(Llama, torch.float32)
    spread = wanted.std(-1, keepdim=True)
    for kind, dtype, linear, cache, bound in (
        (CudaLlama, torch.bfloat16, Linear, None, 0.1),
        (CudaLlama, torch.float16, Linear, None, 0.02),
        (Llama, torch.float32, Linear, E4M3, 0.4),
        (CudaLlama, torch.bfloat16, Linear, E4M3, 0.4),
        (Fp8CudaLlama, torch.bfloat16, Fp8Linear, None, 0.8),
        (Fp8CudaLlama, torch.bfloat16, Fp8Linear, E4M3, 0.9),
    ):
        off = ((run(kind, dtype, linear, cache) - wanted) / spread).square().mean(-1).sqrt()
        print(f"{name} {dtype} {linear.name} {cache}: {off.tolist()}")
        assert off.max() < bound, (dtype, linear.name, cache, off.tolist())
        torch.cuda.empty_cache()
