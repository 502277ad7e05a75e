"""Drawn tokens of the kernel against the sampler that sorts, and penalties against those of a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roseinfer.batch import UNKNOWN, Ints
from roseinfer.engine.adjustments import Adjustments
from roseinfer.engine.sampler import sample, uniform
from roseinfer.kernels.cuda import draw as kernel
from roseinfer.request.params import SAMPLING, SamplingParams, SamplingRows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


def drawn(logits: Tensor, params: SamplingRows, position: Ints) -> list[int]:
    count = len(logits)
    rows = np.random.default_rng(0).permutation(count + 3)[:count]
    last = torch.full((count + 3,), -1, device="cuda")
    out = torch.full((count,), -1, device="cuda")
    kernel.draw(logits, params, uniform(params["seed"], position), rows, last, out)
    assert last[torch.from_numpy(rows).cuda()].tolist() == out.tolist()
    assert (last == -1).sum() == 3
    tokens: list[int] = out.tolist()
    return tokens


ROW = st.tuples(
    st.sampled_from([0.0, 1e-40, 0.3, 1.0, 5.0, 100.0]), st.sampled_from([0, 1, 2, 50, 1000, 10**6]),
    st.sampled_from([1e-9, 0.2, 0.5, 0.9, 0.99, 1.0]), st.sampled_from([0.0, 0.0, 1e-3, 0.2, 1.0]),
    st.integers(0, 2**64 - 1),
)  # fmt: skip


def params_of(rows: list[tuple[float, int, float, float, int]]) -> SamplingRows:
    """Rows of temperature, top_k, top_p, min_p and seed."""
    params = np.zeros(len(rows), SAMPLING)
    names = ("temperature", "top_k", "top_p", "min_p", "seed")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        params[name] = values
    return params


@settings(max_examples=40)
@given(
    st.integers(0, 1000), st.lists(ROW, min_size=1, max_size=70), st.sampled_from([23, 5003, 50257, 151936]),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32]), st.sampled_from([0.1, 1.0, 6.0]),
)  # fmt: skip
def test_tokens_are_those_of_the_sort(seed, rows, vocab, dtype, spread):
    """But where a sum's rounding decides: the neighbour that is as good is at most that far away in mass."""
    torch.manual_seed(seed)
    logits = (torch.randn(len(rows), vocab, device="cuda") * spread).to(dtype)
    params, position = params_of(rows), np.arange(len(rows))
    actual, expected = drawn(logits, params, position), sample(logits, params, position).tolist()
    for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if a == b:
            continue
        temperature, top_k, top_p, min_p, _ = rows[index]
        assert temperature > 0
        if temperature < 1e-30:  # any of the likeliest
            assert logits[index, a] == logits[index].max()
            continue
        p = torch.softmax(logits[index].double() / temperature, -1)
        p *= p >= min_p * p.max() * (1 - 1e-5)
        assert p[a] > 0
        ahead = (p > p[a] * (1 + 1e-6)).double()
        assert top_k == 0 or ahead.sum() < top_k
        kept = p if top_k == 0 else p.topk(min(top_k, vocab))[0]
        assert (p * ahead).sum() <= top_p * kept.sum() + 1e-4
        between = p[min(a, b) : max(a, b) + 1].sum() - torch.maximum(p[a], p[b])
        assert min(float(between), 1.0) < 5e-3 or top_p < 1 or top_k > 0
    assert sum(a != b for a, b in zip(actual, expected, strict=True)) <= 2 + len(rows) // 8
    middle = len(rows) // 2
    alone = slice(middle, middle + 1)
    assert drawn(logits[alone], params[alone], position[alone]) == [actual[middle]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 5, 1.0), (1.0, 0, 0.7), (1.5, 9, 0.8)],
)
def test_frequencies_are_the_distribution(temperature, top_k, top_p, dtype):
    """20,000 draws over seeds: chi-squared below its 1 - 1e-6 quantile."""
    draws, vocab = 20_000, 300
    logits = (torch.randn(vocab, generator=torch.Generator().manual_seed(3)) * 1.5).half()
    p = np.exp(logits.double().numpy() / temperature)
    order = np.argsort(-p, kind="stable")[: top_k or None]
    mass = np.cumsum(p[order]) / p[order].sum()
    order = order[: np.searchsorted(mass, top_p) + 1]
    expected = np.zeros(vocab)
    expected[order] = p[order] / p[order].sum() * draws
    params = params_of([(temperature, top_k, top_p, 0.0, 0)] * draws)
    params["seed"] = np.arange(draws)
    tokens = drawn(logits.to(dtype).cuda().expand(draws, -1), params, np.full(draws, 5))
    counts = np.bincount(tokens, minlength=vocab)
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    chi_squared = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = possible.sum() - 1
    assert chi_squared < freedom + 5 * np.sqrt(2 * freedom) + 25


@settings(max_examples=20)
@given(
    st.integers(0, 1000), st.integers(1, 70), st.integers(1, 3000), st.sampled_from([23, 5003, 151936]),
    st.sampled_from([torch.float16, torch.bfloat16]),
)  # fmt: skip
def test_penalties_are_those_of_a_cpu(seed, rows, longest, vocab, dtype):
    rng = np.random.default_rng(seed)
    logits = (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)
    own = np.flatnonzero(rng.random(rows) < 0.7)
    lengths = rng.integers(1, longest + 1, len(own))
    tokens = rng.integers(0, min(vocab, 400), (len(own), longest), dtype=np.int32)
    unread = rng.random(len(own)) < 0.5
    tokens[unread, lengths[unread] - 1] = UNKNOWN
    params = [
        SamplingParams(
            9, repetition_penalty=rng.choice([1.0, 0.5, 1.3]), presence_penalty=rng.choice([0.0, 1.5]),
            frequency_penalty=rng.choice([0.0, 0.7, -0.3]),
        )
        for _ in own
    ]  # fmt: skip
    adjustments = Adjustments(own, tokens, rng.integers(0, lengths), lengths, params)
    newest = torch.from_numpy(rng.integers(0, vocab, rows))
    got = adjustments.apply(logits.cuda(), newest.cuda(), fused=True)
    torch.testing.assert_close(got.cpu(), adjustments.apply(logits, newest), rtol=1e-6, atol=1e-5)
