"""Attention of prompts from one captured launch, whatever the lengths, against PyTorch's operators."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch

from roseinfer.attention import prefill_backends
from roseinfer.attention.prefill import Spans, sdpa
from roseinfer.attention.prefill_backends import choose
from roseinfer.e4m3 import to_e4m3
from roseinfer.kernels.triton.prefill import prefill_paged

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

DEVICE = torch.device("cuda")
ROWS, PROMPTS = 2048, 64
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", [(12, 12, 64), (9, 3, 64), (16, 8, 128), (4, 1, 32)], ids=str)
@pytest.mark.parametrize("backend", ["triton", "flash-attn", "flash-attn-3"])
def test_one_captured_launch_serves_any_lengths(backend, shape, dtype):
    if backend == "flash-attn" and dtype == torch.float32:
        pytest.skip("flash-attn is for half precision")
    if backend == "flash-attn-3" and not prefill_backends.flash3_loads():
        pytest.skip("fa3-fwd is not installed")
    if backend == "flash-attn-3" and (dtype != torch.bfloat16 or shape[2] == 32):
        pytest.skip("flash-attn-3 is for bf16 and heads of 64 and more")
    heads, kv_heads, dim = shape
    qkv = torch.zeros(ROWS, heads + 2 * kv_heads, dim, dtype=dtype, device=DEVICE)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
    starts = torch.zeros(PROMPTS + 1, dtype=torch.int32, device=DEVICE)
    attend = choose(backend, dim, dtype, DEVICE).attend
    spans = Spans(starts, starts, ROWS, ROWS)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        attend(q, k, v, spans)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = attend(q, k, v, spans)
    rng = np.random.default_rng(7)
    for lengths in ([ROWS], [1], [1] * PROMPTS, [64, 65, 63, 1, 700], rng.integers(1, 33, PROMPTS).tolist()):
        count = sum(lengths)
        padded = [0, *accumulate(lengths), *[count] * (PROMPTS - len(lengths))]
        starts.copy_(torch.tensor(padded, dtype=torch.int32))
        qkv.normal_()
        graph.replay()
        wanted = sdpa(q.float(), k.float(), v.float(), spans)
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(got[:count].float(), wanted[:count], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", [(9, 3, 64), (16, 8, 128), (4, 1, 32)], ids=str)
@pytest.mark.parametrize("fp8", [False, True])
def test_prompts_after_cached_tokens(shape: tuple[int, int, int], dtype: torch.dtype, fp8: bool) -> None:
    """Keys in blocks in any order, of prompts with and without context, and padding after them; the cache in
    8-bit floats, too."""
    heads, kv_heads, dim = shape
    size, most, counts, contexts = 16, 80, [70, 1, 64, 300, 5], [0, 33, 1000, 130, 64]
    generator = torch.Generator(DEVICE).manual_seed(3)
    table = torch.randperm(8 * most, generator=generator, device=DEVICE).view(8, most).int()
    keys, values = torch.randn(
        2, 8 * most * size, kv_heads, dim, generator=generator, device=DEVICE, dtype=dtype
    )
    if fp8:
        keys, values = to_e4m3(keys), to_e4m3(values)
    rows = torch.tensor([4, 0, 7, 2, 5, 1, 1], dtype=torch.int32, device=DEVICE)
    lengths = [count + context for count, context in zip(counts, contexts, strict=True)]
    query, key = (
        torch.tensor([0, *accumulate(each), *[sum(each)] * 2], dtype=torch.int32, device=DEVICE)
        for each in (counts, lengths)
    )
    q = torch.randn(sum(counts) + 9, heads, dim, generator=generator, device=DEVICE, dtype=dtype)
    out = torch.full_like(q, torch.nan)
    prefill_paged(q, keys, values, query, key, table, rows, size, out)
    slots = torch.cat(
        [
            (table[row].long()[:, None] * size + torch.arange(size, device=DEVICE)).ravel()[:length]
            for row, length in zip(rows.tolist(), lengths, strict=False)
        ]
    )
    count = sum(counts)
    spans = Spans(query, key, max(counts), max(lengths))
    wanted = sdpa(q[:count].float(), keys.float()[slots], values.float()[slots], spans)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out[:count].float(), wanted, rtol=tolerance, atol=tolerance)
