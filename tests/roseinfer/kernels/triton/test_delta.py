"""The gated delta rule of decoding requests against the plain layer."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.kvcache.states import States, StateShape
from roseinfer.models.delta import DeltaStep, GatedDelta
from roseinfer.models.hybrid_cuda import CudaGatedDelta
from tests.roseinfer.kernels.triton.conftest import DEVICE, EPS, close, draw, examples, seeds


@examples
@given(st.integers(1, 5), st.sampled_from([1, 2, 3]), st.sampled_from([(16, 32), (24, 40)]), seeds)
def test_steps_of_running_rows(requests: int, group: int, dims: tuple[int, int], seed: int) -> None:
    """Two after each other; the second has results and states that depend on the first. Other rows stay."""
    (key_dim, value_dim), key_heads = dims, 2
    heads = key_heads * group
    channels = 2 * key_heads * key_dim + heads * value_dim
    shape = StateShape(2, heads, key_dim, value_dim, channels, 4)
    weights = draw(seed, 4, channels), -draw(seed, heads).exp(), draw(seed + 1, heads), draw(seed, value_dim)
    rows = torch.randperm(7, generator=torch.Generator().manual_seed(seed))[:requests].to(DEVICE)
    results = []
    for kind in (GatedDelta, CudaGatedDelta):
        states = States(shape, 7, DEVICE)
        for layer in range(2):
            for number, memory in enumerate(states.layer(layer)):
                memory.copy_(draw(seed + number + layer, *memory.shape))
        rule = kind(*weights, key_heads, key_dim, EPS)
        step = DeltaStep(states, None, rows.int())
        inputs = draw(seed + 2, 2, requests, channels + heads * value_dim + 2 * heads)
        outs = [rule(x, step, 1) for x in inputs]
        results.append([*outs, *states.layer(0), *states.layer(1)])
    for actual, expected in zip(results[1], results[0], strict=True):
        close(actual, expected)
