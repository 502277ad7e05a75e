"""Speculation on a real model leaves tokens and logprobs as they are, whatever else a request asks for."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from roseinfer.engine.core import Engine
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.speculation import Account
from tests.roseinfer.conftest import config_of, generate, make_gpt2, on_models, reference_logits

pytestmark = pytest.mark.slow


def requests(count: int = 10) -> list[tuple[list[int], SamplingParams]]:
    """Prompts that repeat themselves, and answers of three tokens, in which some repetitions go on."""
    rng = np.random.default_rng(3)
    each = []
    for index in range(count):
        prompt = np.tile(rng.integers(0, 4000, rng.integers(3, 9)), 6)[: rng.integers(10, 40)].tolist()
        likely = rng.integers(0, 4000, 3).tolist()
        params = SamplingParams(
            int(rng.integers(1, 40)), min_tokens=index % 2, temperature=(0, 0, 0.8)[index % 3], seed=index,
            repetition_penalty=(1, 1, 1.2)[index % 3], logprobs=(None, 2)[index % 2],
            logit_bias=tuple((token, 60.0) for token in likely),
            stop_token_ids=(likely[0],) if index % 4 == 3 else (),
        )  # fmt: skip
        each.append((prompt, params))
    return each


@on_models(["llama"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"overlap_schedule": True},
        {"kv_tokens": 160, "block_size": 4, "max_model_len": 100, "prefill_max_tokens": 2048},
        {"overlap_schedule": True, "chunked_prefill_size": 8, "max_batch_size": 3, "cpu_kernels": False},
    ],
    ids=lambda settings: "+".join(settings) or "usual",
)
def test_answers_are_those_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(Account, "allows", lambda self, requests: True)
    monkeypatch.setattr(Account, "pays", lambda self, requests, drafted: drafted > 0)
    expected = generate(Engine(config_of(folder)), requests())
    engine = Engine(config_of(folder, speculate="ngram", **settings))
    answers = generate(engine, requests(), interval=1)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    for answer, other in zip(answers, expected, strict=True):
        assert len(answer.logprobs) == len(other.logprobs)
        for logprobs, expected_logprobs in zip(answer.logprobs, other.logprobs, strict=True):
            assert logprobs.values == pytest.approx(expected_logprobs.values, abs=1e-4)
    assert engine.drafts is not None and 0 < engine.drafts.accepted_tokens < engine.drafts.tokens
    assert (engine.preemptions > 0) == ("kv_tokens" in settings)


def test_sampled_tokens_have_the_distribution_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three tokens of many answers to a prompt in which any three of four likely tokens come, so
    that each answer drafts; by transformers' logits, and the same as without speculation."""
    monkeypatch.setattr(Account, "allows", lambda self, requests: True)
    monkeypatch.setattr(Account, "pays", lambda self, requests, drafted: drafted > 0)
    folder = make_gpt2(tmp_path, layers=1, width=32, heads=2, vocab=203)
    likely, count, bias = (5, 6, 7, 8), 1000, 25.0
    prompt = [token for three in product(likely, repeat=3) for token in three]
    params = [
        SamplingParams(5, temperature=1.2, seed=seed, logit_bias=tuple((token, bias) for token in likely))
        for seed in range(count)
    ]
    llm, plain = (
        LLM(config_of(folder, max_active_requests=16, kv_tokens=8192, speculate=speculate))
        for speculate in ("ngram", None)
    )
    answers = llm.generate([prompt] * count, params)
    drafts = llm.engine.drafts
    assert drafts is not None and 0.1 < drafts.accepted_tokens / drafts.tokens < 0.9
    assert answers == plain.generate([prompt] * count, params)
    counted = Counter(tuple(answer[:3]) for answer in answers)
    expected = dict[tuple[int, ...], float]()
    for first in product(likely, repeat=2):
        logits = reference_logits(folder, [*prompt, *first])[-3:].clone()
        logits[:, list(likely)] += bias
        probabilities = (logits / 1.2).softmax(-1)
        for third in likely:
            each = [probabilities[place, token] for place, token in enumerate((*first, third))]
            expected[*first, third] = count * float(np.prod(each))
    assert sum(expected.values()) > 0.999 * count
    often = [three for three in expected if expected[three] >= 5]
    observed = [*(counted[three] for three in often), count - sum(counted[three] for three in often)]
    means = [*(expected[three] for three in often), count - sum(expected[three] for three in often)]
    assert len(often) > 10 and chisquare(observed, means).pvalue > 1e-3
