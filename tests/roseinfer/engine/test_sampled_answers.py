"""Sampled tokens of requests in mixed batches follow the distribution that transformers defines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy.stats import chi2
from transformers import AutoModelForCausalLM
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from roseinfer.config import EngineConfig
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams

PROMPT = [17, 4, 1999]
#: temperature, top_k, top_p
SETTINGS = [(0.3, 0, 1.0), (1.3, 12, 1.0), (0.2, 0, 0.6), (0.5, 20, 0.8)]
DRAWS, BINS = 700, 20


def distribution(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Probabilities `[vocab]` of logits `[1, vocab]`."""
    ids = torch.tensor([PROMPT])
    warped = TemperatureLogitsWarper(temperature)(ids, logits)
    if top_k:
        warped = TopKLogitsWarper(top_k)(ids, warped)
    return torch.softmax(TopPLogitsWarper(top_p)(ids, warped), -1)[0]


def rank_bins(p: np.ndarray) -> np.ndarray:
    """The bin `[vocab]` of each token: of about equal mass, the likeliest tokens first."""
    order = np.argsort(-p, kind="stable")
    bins = np.empty(len(p), dtype=np.int64)
    bins[order] = np.minimum((p[order].cumsum() - p[order] / 2) * BINS, BINS - 1)
    return bins


def test_frequencies(gpt2_folder: Path) -> None:
    """Chi-squared of the first token over seeds, all settings in the same batches; level 1e-6."""
    config = EngineConfig(
        str(gpt2_folder), device="cpu", dtype="fp32", kv_tokens=4096, prefill_max_tokens=768, warmup=False
    )
    how = [
        SamplingParams(1, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, ignore_eos=True)
        for seed in range(DRAWS)
        for temperature, top_k, top_p in SETTINGS
    ]
    answers = np.array(LLM(config).generate([PROMPT] * len(how), how)).reshape(DRAWS, len(SETTINGS))
    reference = AutoModelForCausalLM.from_pretrained(gpt2_folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = reference(torch.tensor([PROMPT])).logits[:, -1]
    for index, settings in enumerate(SETTINGS):
        expected = distribution(logits, *settings).double().numpy()
        bins = rank_bins(expected)
        drawn = answers[:, index]
        assert (expected[drawn] > 0).all()
        wanted = np.bincount(bins, expected) * DRAWS
        seen = np.bincount(bins[drawn], minlength=len(wanted))[wanted > 0]
        wanted = wanted[wanted > 0]
        assert len(wanted) > BINS / 3 and wanted.min() > 5
        assert chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(wanted) - 1) > 1e-6
