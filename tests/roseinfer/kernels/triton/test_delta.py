"""The gated delta rule's kernels against the plain layer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from roseinfer.batch import NO_INTS, Segment
from roseinfer.kernels.triton import delta_prompts
from roseinfer.kvcache.states import StateRows, States, StateShape
from roseinfer.models.delta import GatedDelta
from roseinfer.models.hybrid_cuda import CudaGatedDelta
from tests.roseinfer.kernels.triton.conftest import DEVICE, EPS, close, draw, examples, seeds

#: Tokens of a prompt that a program takes: few in the interpreter, whose time grows with their square.
CHUNK = delta_prompts.CHUNK if DEVICE.type == "cuda" else 16


@pytest.fixture(scope="module", autouse=True)
def chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("kernels.triton.delta_prompts", "models.hybrid_cuda"):
            patch.setattr(f"roseinfer.{module}.CHUNK", CHUNK)
        yield


def layer_of(
    seed: int, group: int, dims: tuple[int, int]
) -> tuple[StateShape, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """A layer's shape, with two key heads, and its weights."""
    key_dim, value_dim = dims
    heads = 2 * group
    channels = 4 * key_dim + heads * value_dim
    weights = draw(seed, 4, channels), -draw(seed, heads).exp(), draw(seed + 1, heads), draw(seed, value_dim)
    return StateShape(2, heads, key_dim, value_dim, channels, 4), weights


def drawn_states(shape: StateShape, seed: int) -> States:
    states = States(shape, 7, DEVICE)
    for layer in range(2):
        for number, memory in enumerate(states.layer(layer)):
            memory.copy_(draw(seed + number + layer, *memory.shape))
    return states


@examples
@given(st.integers(1, 5), st.sampled_from([1, 2, 3]), st.sampled_from([(16, 32), (24, 40)]), seeds)
def test_steps_of_running_rows(requests: int, group: int, dims: tuple[int, int], seed: int) -> None:
    """Two after each other; the second has results and states that depend on the first. Other rows stay."""
    shape, weights = layer_of(seed, group, dims)
    rows = torch.randperm(7, generator=torch.Generator().manual_seed(seed))[:requests].to(DEVICE)
    results = []
    for kind in (GatedDelta, CudaGatedDelta):
        states = drawn_states(shape, seed)
        rule = kind(*weights, 2, shape.key_dim, EPS)
        step = rule.step(StateRows(states, (), rows.int()), shape.taps, DEVICE)
        inputs = draw(seed + 2, 2, requests, shape.channels + shape.heads * (shape.value_dim + 2))
        outs = [rule(x, step, 1) for x in inputs]
        results.append([*outs, *states.layer(0), *states.layer(1)])
    for actual, expected in zip(results[1], results[0], strict=True):
        close(actual, expected)


@examples
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 6]), st.booleans()),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 2),
    st.sampled_from([1, 2]),
    st.sampled_from([(16, 32), (24, 40)]),
    seeds,
)
def test_prompts_beside_running_rows(
    prompts: list[tuple[int, bool]], decodes: int, group: int, dims: tuple[int, int], seed: int
) -> None:
    """Prompts of any length, from their beginning or not; keys of a prompt are alike, as in repeated text."""
    shape, weights = layer_of(seed, group, dims)
    rows = torch.randperm(7, generator=torch.Generator().manual_seed(seed)).tolist()
    segments, start = [], 0
    for row, (count, continued) in zip(rows, prompts, strict=False):
        segments.append(Segment(start, count, 100 * continued, NO_INTS, row))
        start += count
    others = torch.tensor(rows[len(prompts) : len(prompts) + decodes], dtype=torch.int32, device=DEVICE)
    inputs = draw(seed + 2, start + decodes, shape.channels + shape.heads * (shape.value_dim + 2))
    inputs[: start // 2, : 4 * shape.key_dim] = inputs[0, : 4 * shape.key_dim].clone()
    results = []
    for kind in (GatedDelta, CudaGatedDelta):
        states = drawn_states(shape, seed)
        rule = kind(*weights, 2, shape.key_dim, EPS)
        step = rule.step(StateRows(states, tuple(segments), others if decodes else None), shape.taps, DEVICE)
        results.append([rule(inputs, step, 1), *states.layer(0), *states.layer(1)])
    for actual, expected in zip(results[1], results[0], strict=True):
        close(actual, expected)
