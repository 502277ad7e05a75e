"""Sampling against its definition written out in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2
from transformers.generation import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from roseinfer.engine.sampler import keep_likeliest, sample, top_k_top_p
from roseinfer.llm import LLM
from roseinfer.request.params import SAMPLING, SamplingParams, SamplingRows
from tests.roseinfer.conftest import config_of, reference_logits

VOCAB = 23


def params_of(rows: list[tuple[float, int, float, int]]) -> SamplingRows:
    """Rows of temperature, top_k, top_p and seed."""
    params = np.zeros(len(rows), SAMPLING)
    for name, values in zip(("temperature", "top_k", "top_p", "seed"), zip(*rows, strict=True), strict=True):
        params[name] = values
    return params


def distribution(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float = 0.0
) -> np.ndarray:
    """Softmax, cut to tokens of min_p of the likeliest, to the top_k likeliest, then to the smallest set that
    holds top_p of what is left."""
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p[p < min_p] = 0
    order = np.argsort(-p, kind="stable")[: top_k or None]
    mass = np.cumsum(p[order]) / p[order].sum()
    kept = order[: np.searchsorted(mass, top_p) + 1]
    out = np.zeros_like(p)
    out[kept] = p[kept]
    return out / out.sum()


ROW = st.tuples(
    st.sampled_from([0.0, 1e-40, 0.3, 1.0, 5.0]),
    st.integers(0, VOCAB + 2),
    st.sampled_from([1e-9, 0.2, 0.5, 0.9, 1.0]),
    st.integers(0, 2**64 - 1),
)


@given(rows=st.lists(ROW, min_size=1, max_size=8), seed=st.integers(0, 99), dtype=st.booleans())
def test_only_allowed_tokens_and_each_row_alone(rows, seed, dtype):
    """A row's token is one its own settings allow, and the same whatever else is in the batch."""
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    logits = logits.to(torch.bfloat16 if dtype else torch.float32)
    params, position = params_of(rows), np.arange(len(rows))
    tokens = sample(logits, params, position).tolist()
    for i, (temperature, top_k, top_p, _) in enumerate(rows):
        row = logits[i].float().numpy()
        if temperature < 1e-30:
            best = np.flatnonzero(row == row.max())
            assert tokens[i] == best[0] if temperature == 0 else tokens[i] in best
        else:
            # A hair more, for sums that rounding puts on the other side of top_p.
            assert distribution(row, temperature, top_k, min(top_p + 1e-5, 1))[tokens[i]] > 0
        assert sample(logits[[i]], params[[i]], position[[i]]).tolist() == [tokens[i]]


@pytest.mark.parametrize(
    ("how", "over"),
    [
        ((1.0, 0, 1.0), "seeds"), ((0.5, 0, 1.0), "positions"), ((2.0, 5, 1.0), "seeds"),
        ((1.0, 0, 0.7), "positions"), ((1.5, 9, 0.8), "seeds"), ((1.3, 0, 1.0, 0.05), "positions"),
        ((1.3, 0, 1.0, 1.0), "seeds"), ((1.3, 5, 1.0, 0.05), "seeds"), ((1.3, 0, 0.8, 0.02), "positions"),
    ],
)  # fmt: skip
def test_frequencies_are_the_distribution(how: tuple[Any, ...], over: str) -> None:
    """4,000 draws over seeds, or over the positions of one seed: chi-squared below its 1 - 1e-6 quantile."""
    draws = 4_000
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 1.5
    params, position = params_of([(*how[:3], 7)] * draws), np.arange(draws)
    params["min_p"] = how[3] if len(how) > 3 else 0
    if over == "seeds":
        params["seed"], position = position, np.full(draws, 5)
    tokens = sample(logits.expand(draws, -1), params, position, cpu_rows=draws)
    assert torch.equal(sample(logits.expand(9, -1), params[50:59], position[50:59]), tokens[50:59])
    counts = np.bincount(tokens.numpy(), minlength=VOCAB)
    expected = distribution(logits.numpy(), *how) * draws
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    chi_squared = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = possible.sum() - 1
    assert chi_squared <= freedom + 5 * np.sqrt(2 * freedom) + 25


def test_first_of_equal_logits() -> None:
    logits = torch.zeros(3, VOCAB)
    assert sample(logits, params_of([(0, 0, 1, 1)] * 3), np.arange(3)).tolist() == [0, 0, 0]


def test_top_p_of_a_row_does_not_depend_on_others() -> None:
    """Also where the last bit of the mass decides whether a token is kept, with a vocabulary so large that
    PyTorch splits the sum of one row over its threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for seed in range(1, 5):
            logits = torch.randn(4, 49_152, generator=torch.Generator().manual_seed(seed)) * 0.1
            rows = torch.softmax(logits, -1).sort(dim=-1, descending=True).values
            sums = rows[0].double().cumsum(0)
            for cut in (sums[3000:45000:2000] / sums[-1]).tolist():
                for top_p in (cut, float(np.nextafter(np.float32(cut), np.float32(1)))):
                    alone, among = (
                        top_k_top_p(rows[:n], params_of([(1.0, 0, top_p, 0)] * n)) for n in (1, 4)
                    )
                    assert torch.equal(alone[0], among[0])
    finally:
        torch.set_num_threads(before)


@given(
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.0, 1e-3, 0.1, 2.0, 30.0]),
    levels=st.sampled_from([1, 3, 1000]),
    top_k=st.sampled_from([0, 1, 2, 77, 998, 1000, 2000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999999, 1.0]),
)
def test_selection_keeps_what_sorting_keeps(seed, spread, levels, top_k, top_p):
    """Also of equal and of nearly equal probabilities."""
    logits = torch.randint(levels, (1000,), generator=torch.Generator().manual_seed(seed)) * spread / levels
    probabilities = torch.softmax(logits, -1)
    descending, order = probabilities.sort(descending=True, stable=True)
    expected = torch.zeros(1000).scatter_(
        0, order, top_k_top_p(descending[None], params_of([(1, top_k, top_p, 0)]))[0]
    )
    keep_likeliest(probabilities[None], params_of([(1, top_k, top_p, 0)]))
    differing = torch.where(probabilities != expected)[0]
    assert len(differing) <= 1, "sums in another order may round to the other side of top_p"
    assert not len(differing) or 0 < top_p < 1


def test_a_row_pays_for_its_own_top_p(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens are sorted, and only those of rows that have one."""
    sorted_tokens, argsort = [], np.argsort

    def counted(values: np.ndarray, kind: Any) -> np.ndarray:
        sorted_tokens.extend([] if values.dtype == bool else [len(values)])
        return argsort(values, kind=kind)

    monkeypatch.setattr(np, "argsort", counted)
    monkeypatch.setattr(torch.Tensor, "sort", None)
    logits = torch.randn(128, 50_000, generator=torch.Generator().manual_seed(0)) * 2
    params = params_of([(temperature, 0, 1.0, 5) for temperature in (0, 1) for _ in range(64)])
    sample(logits, params, np.arange(128))
    assert not sorted_tokens
    params["top_p"][::32], params["temperature"][-1] = 0.9, 100
    params["top_k"][-1] = 20_000
    sample(logits, params, np.arange(128))
    assert len(sorted_tokens) == 3 and max(sorted_tokens) < 2_000


PROMPT = [17, 4, 1999]
#: temperature, min_p, top_k, top_p
SETTINGS = [(0.3, 0, 0, 1.0), (1.3, 0, 12, 1.0), (0.2, 0, 0, 0.6), (0.5, 0, 20, 0.8), (0.3, 0.02, 0, 1.0)]
DRAWS, BINS = 300, 20


def warped_distribution(
    logits: torch.Tensor, temperature: float, min_p: float, top_k: int, top_p: float
) -> torch.Tensor:
    """Probabilities `[vocab]` of logits `[1, vocab]`."""
    ids = torch.tensor([PROMPT])
    warped = TemperatureLogitsWarper(temperature)(ids, logits)
    if min_p:
        warped = MinPLogitsWarper(min_p)(ids, warped)
    if top_k:
        warped = TopKLogitsWarper(top_k)(ids, warped)
    return torch.softmax(TopPLogitsWarper(top_p)(ids, warped), -1)[0]


def rank_bins(p: np.ndarray) -> np.ndarray:
    """The bin `[vocab]` of each token: of about equal mass, the likeliest tokens first."""
    order = np.argsort(-p, kind="stable")
    bins = np.empty(len(p), dtype=np.int64)
    bins[order] = np.minimum((p[order].cumsum() - p[order] / 2) * BINS, BINS - 1)
    return bins


def test_answers_in_mixed_batches_follow_the_distribution(gpt2_folder: Path) -> None:
    """Chi-squared of the first token over seeds, all settings in the same batches; level 1e-6."""
    llm = LLM(config_of(gpt2_folder, kv_tokens=4096, prefill_max_tokens=768))
    params = [
        SamplingParams(1, temperature=t, min_p=min_p, top_k=top_k, top_p=top_p, seed=seed, ignore_eos=True)
        for seed in range(DRAWS)
        for t, min_p, top_k, top_p in SETTINGS
    ]
    answers = np.array(llm.generate([PROMPT] * len(params), params)).reshape(DRAWS, len(SETTINGS))
    logits = reference_logits(gpt2_folder, PROMPT)[-1:]
    for index, settings in enumerate(SETTINGS):
        expected = warped_distribution(logits, *settings).double().numpy()
        bins = rank_bins(expected)
        drawn = answers[:, index]
        assert (expected[drawn] > 0).all()
        expected_counts = np.bincount(bins, expected) * DRAWS
        counts = np.bincount(bins[drawn], minlength=len(expected_counts))[expected_counts > 0]
        expected_counts = expected_counts[expected_counts > 0]
        assert len(expected_counts) > BINS / 3 and expected_counts.min() > 5
        chi_squared = ((counts - expected_counts) ** 2 / expected_counts).sum()
        assert chi2.sf(chi_squared, len(expected_counts) - 1) > 1e-6
