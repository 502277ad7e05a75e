"""A model of the Llama family made of Triton's kernels, against the one of PyTorch's operators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.attention.prefill import sdpa
from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.e4m3 import E4M3, movable
from roseinfer.kvcache.pool import KVPool
from roseinfer.models import config
from roseinfer.models.config import LlamaConfig
from roseinfer.models.linear import Linear
from roseinfer.models.llama import Llama
from roseinfer.models.llama_cuda import CudaLlama
from roseinfer.models.ops import Ops
from roseinfer.models.weights import Weights
from tests.roseinfer.conftest import LLAMAS, lay_out, make_batch, on_models
from tests.roseinfer.kernels.triton.conftest import DEVICE, close, draw

OPS = Ops()


pytestmark = on_models(LLAMAS)
needs_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="Triton's interpreter does not round to E4M3")


@pytest.mark.parametrize("cache", [torch.float32, pytest.param(E4M3, marks=needs_gpu)], ids=str)
def test_a_model_of_these_kernels_is_the_plain_one(folder: Path, cache: torch.dtype) -> None:
    """Prompts, one of them after cached tokens, beside requests that decode; then all of them decode."""
    shape = config.read(folder)
    assert isinstance(shape, LlamaConfig)
    shape = replace(shape, layers=2)
    models = [
        kind(shape, Weights(folder), DEVICE, torch.float32, linear=Linear, ops=OPS)
        for kind in (Llama, CudaLlama)
    ]
    size, counts, contexts = 8, [5, 11, 1, 1], [0, 9, 20, 3]
    rng = np.random.default_rng(0)
    blocks, table, slots = lay_out([c + n + 1 for c, n in zip(contexts, counts, strict=True)], size, rng)
    pools = [KVPool(shape.kv_shape(cache), blocks, size, DEVICE) for _ in models]
    attentions = TorchPagedAttention(pools[0]), CudaPagedAttention(pools[1], sdpa)
    for index, (context, slot) in enumerate(zip(contexts, slots, strict=True)):
        cached = draw(index, 2, context, shape.kv_heads, shape.head_dim)
        for pool in pools:
            for layer in range(shape.layers):
                for memory, rows in zip(pool.layer(layer), cached, strict=True):
                    movable(memory)[slot[:context]] = movable(rows.to(cache))
    prompts = make_batch(contexts, counts, table, slots, size, decoding=2)
    lengths = [c + n for c, n in zip(contexts, counts, strict=True)]
    decodes = make_batch(lengths, [1] * 4, table, slots, size, decoding=4)
    for batch in (prompts, decodes):
        tokens = torch.from_numpy(rng.integers(0, shape.vocab_size, len(batch.tokens))).to(DEVICE)
        positions = torch.from_numpy(batch.positions).to(DEVICE)
        hidden = []
        for model, attention in zip(models, attentions, strict=True):
            attention.begin(batch)
            hidden.append(model.forward(tokens, positions, attention)[batch.last_rows])
        logits = [model.logits(rows) for model, rows in zip(models, hidden, strict=True)]
        close(logits[1], logits[0])
        last = torch.zeros(5, dtype=torch.int64, device=DEVICE)
        out = torch.zeros(len(batch.last_rows), dtype=torch.int64, device=DEVICE)
        rows = torch.arange(len(out), dtype=torch.int32, device=DEVICE)
        models[1].choose(hidden[1], rows, last, out)
        assert out.tolist() == last[: len(out)].tolist() == logits[0].argmax(-1).tolist()
    for memories in zip(*(pool.layer(shape.layers - 1) for pool in pools), strict=True):
        close(*(memory.float() for memory in memories))


def test_every_step_of_decoding_starts_from_the_last_token(folder: Path) -> None:
    shape = config.read(folder)
    assert isinstance(shape, LlamaConfig)
    shape = replace(shape, layers=1)
    model = CudaLlama(shape, Weights(folder), DEVICE, torch.float32, linear=Linear, ops=OPS)
    pool = KVPool(shape.kv_shape(torch.float32), 4, 8, DEVICE)
    attention = CudaPagedAttention(pool, sdpa)
    slots = [np.arange(16, 24), np.arange(0, 8)]
    batch = make_batch([2, 5], [1, 1], np.array([[2], [0]]), slots, 8, decoding=2)
    last = torch.tensor([9, 4, 7], device=DEVICE)
    rows, lengths = torch.tensor([[2, 0], [3, 6]], dtype=torch.int32, device=DEVICE)
    attention.begin(batch)
    hidden = model.forward_last(last, rows, lengths, attention)
    positions = torch.tensor([2, 5], device=DEVICE)
    close(hidden, model.forward(last[[2, 0]], positions, attention))
