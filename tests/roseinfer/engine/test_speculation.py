"""Speculation on a real model leaves tokens and logprobs as they are, whatever else a request asks for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from scipy.stats import chisquare

from roseinfer.batch import Ints
from roseinfer.config import ConfigError
from roseinfer.engine.core import Engine
from roseinfer.engine.drafts import DraftModel
from roseinfer.engine.warmup import DRAFTED, warm_up
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.policies import Chunk
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.speculation import MOST_ROWS, UNSEEN, Account
from tests.roseinfer.conftest import (
    Generated,
    config_of,
    generate,
    make_gpt2,
    on_models,
    reference_logits,
    traffic,
)

pytestmark = pytest.mark.slow


def requests(biased: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts that repeat themselves, and answers, every `biased`-th of three tokens, in which some
    repetitions go on."""
    rng = np.random.default_rng(3)
    each = []
    for index in range(10):
        prompt = np.tile(rng.integers(0, 4000, rng.integers(3, 9)), 6)[: rng.integers(10, 40)].tolist()
        likely = rng.integers(0, 4000, 3).tolist()
        params = SamplingParams(
            int(rng.integers(1, 40)), min_tokens=index % 2, temperature=(0, 0, 0.8)[index % 3], seed=index,
            repetition_penalty=(1, 1, 1.2)[index % 3], logprobs=(None, 2)[index % 2],
            logit_bias=tuple((token, 60.0) for token in likely if index % biased == 0),
            stop_token_ids=(likely[0],) if index % 4 == 3 else (),
        )  # fmt: skip
        each.append((prompt, params))
    return each


@cache
def plain_answers(folder: Path, biased: int) -> list[Generated]:
    """Answers without drafts."""
    return generate(Engine(config_of(folder)), requests(biased))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts whether they pay or not."""
    monkeypatch.setattr(Account, "allows", lambda self, requests: True)
    monkeypatch.setattr(Account, "lends", lambda self, requests: True)
    monkeypatch.setattr(Account, "pays", lambda self, requests, drafted: drafted > 0)


@on_models(["llama"])
@pytest.mark.parametrize("by_model", [False, True])
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
    folder: Path, always: None, settings: dict[str, Any], by_model: bool
) -> None:
    """Also drafts of the model itself are wrong at times: it does not know what a request adds to logits."""
    biased, source = (3, str(folder)) if by_model else (1, "ngram")
    every, expected = requests(biased), plain_answers(folder, biased)
    engine = Engine(config_of(folder, speculate=source, **settings))
    answers = generate(engine, every, interval=1)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    for answer, other in zip(answers, expected, strict=True):
        assert len(answer.logprobs) == len(other.logprobs)
        for logprobs, expected_logprobs in zip(answer.logprobs, other.logprobs, strict=True):
            assert logprobs.values == pytest.approx(expected_logprobs.values, abs=1e-4)
    assert engine.drafts is not None and 0 < engine.drafts.accepted_tokens < engine.drafts.tokens
    assert (engine.preemptions > 0) == ("kv_tokens" in settings)


@on_models(["llama"])
def test_a_draft_model_sees_all_kinds_of_tokens_before_the_first_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Callable[[str], Path]
) -> None:
    """Prompts of each length, and later more tokens than a step verifies, and fewer."""
    computed, see = set[tuple[bool, int]](), DraftModel._see

    def noted(model: DraftModel, running: Running, chunks: list[Chunk]) -> Ints:
        computed.update((chunk.context > 0, chunk.count) for chunk in chunks)
        return see(model, running, chunks)

    monkeypatch.setattr(DraftModel, "_see", noted)
    settings = {"speculate": str(model_folder("gpt2")), "max_model_len": 200, "prefill_max_tokens": 200}
    engine = Engine(config_of(folder, **settings))
    assert not computed  # a CPU compiles nothing
    engine.info = structs.replace(engine.info, config=replace(engine.info.config, device="cuda"))
    warm_up(engine)
    for length in (1, 16, 64, 128):
        assert computed & {(False, length + more) for more in range(1, DRAFTED)}
    later = {count for again, count in computed if again}
    assert any(count > MOST_ROWS for count in later) and any(UNSEEN < n <= MOST_ROWS for n in later)
    assert engine.drafts is not None and engine.drafts.drafts == engine.drafts.tokens == 0
    engine.check_idle()


@on_models(["llama"])
@pytest.mark.parametrize("context", [4, DRAFTED, DRAFTED + 1])
def test_a_short_context_is_warmed_up_without_drafts(folder: Path, context: int) -> None:
    engine = Engine(config_of(folder, speculate=str(folder), max_model_len=context))
    engine.info = structs.replace(engine.info, config=replace(engine.info.config, device="cuda"))
    warm_up(engine)
    engine.check_idle()


@on_models(["llama"])
def test_a_model_is_right_about_itself(
    folder: Path, always: None, model_folder: Callable[[str], Path]
) -> None:
    """Whatever happens to requests: preemption, aborts, chunks, cached prompts. Another one is wrong."""
    every = traffic(5, 14, [0, 16, 33], [1, 9, 30], max_tokens=[2, 9, 25])
    expected = generate(Engine(config_of(folder)), every)
    settings: dict[str, Any] = {
        "kv_tokens": 160, "block_size": 4, "max_model_len": 100, "chunked_prefill_size": 24,
    }  # fmt: skip
    counts = []
    for draft in (folder, model_folder("gpt2")):
        engine = Engine(config_of(folder, speculate=str(draft), **settings))
        for id, (prompt, params) in enumerate(every):
            engine.add(id, np.array(prompt, np.int32), params)
        answers, gone = [list[int]() for _ in every], {3: 1, 6: 4, 7: 5}
        while (step := engine.step()) is not None:
            for id, token in zip(step.ids.tolist(), step.tokens.tolist(), strict=True):
                answers[id].append(token)
            for id, least in gone.items():
                if len(answers[id]) >= least:
                    engine.discard(id)
        engine.check_idle()
        for id, answer in enumerate(answers):
            assert answer == expected[id].tokens[: len(answer)]
            assert id in gone or len(answer) == len(expected[id].tokens)
        assert engine.preemptions and engine.cached_tokens and engine.drafts is not None
        counts.append(engine.drafts)
    assert counts[0].accepted_tokens == counts[0].tokens > 50
    assert sum(counts[0].accepted) == counts[0].tokens and counts[0].accepted[0] == counts[0].drafts
    assert counts[1].accepted_tokens < 0.1 * counts[1].tokens


@pytest.mark.parametrize(
    ("draft", "says"),
    [("qwen3_5", "states"), ("gpt2", "1024, its positions"), ("other", "203 tokens and the model 5003")],
)
def test_what_cannot_draft_is_refused(
    tmp_path: Path, model_folder: Callable[[str], Path], draft: str, says: str
) -> None:
    raw = json.loads((model_folder("llama") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"max_position_embeddings": 2048}))
    (tmp_path / "model.safetensors").symlink_to(model_folder("llama") / "model.safetensors")
    if draft == "other":
        model = make_gpt2(tmp_path / "other", layers=1, width=32, heads=2, vocab=203)
    else:
        model = model_folder(draft)
    with pytest.raises(ConfigError, match=says):
        Engine(config_of(tmp_path, speculate=str(model)))


def test_sampled_tokens_have_the_distribution_of_the_model(tmp_path: Path, always: None) -> None:
    """The first three tokens of many answers to a prompt in which any three of four likely tokens come, so
    that each answer drafts; by transformers' logits."""
    folder = make_gpt2(tmp_path, layers=1, width=32, heads=2, vocab=203)
    likely, count, bias = (5, 6, 7, 8), 1000, 25.0
    prompt = [token for three in product(likely, repeat=3) for token in three]
    params = [
        SamplingParams(5, temperature=1.2, seed=seed, logit_bias=tuple((token, bias) for token in likely))
        for seed in range(count)
    ]
    llm = LLM(config_of(folder, max_active_requests=16, kv_tokens=8192, speculate="ngram"))
    answers = llm.generate([prompt] * count, params)
    drafts = llm.engine.drafts
    assert drafts is not None and 0.1 < drafts.accepted_tokens / drafts.tokens < 0.9
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
