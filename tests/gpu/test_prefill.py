"""Attention of prompts from one captured launch, whatever the lengths, against PyTorch's operators."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch

from roseinfer.attention.prefill import Spans, sdpa
from roseinfer.attention.prefill_backends import choose
from roseinfer.config import PrefillBackend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

DEVICE = torch.device("cuda")
ROWS, PROMPTS = 2048, 64
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", [(12, 12, 64), (9, 3, 64), (16, 8, 128), (4, 1, 32)], ids=str)
@pytest.mark.parametrize("backend", ["triton", "flash-attn"])
def test_one_captured_launch_serves_any_lengths(
    backend: PrefillBackend, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    if backend == "flash-attn" and dtype == torch.float32:
        pytest.skip("flash-attn is for half precision")
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
