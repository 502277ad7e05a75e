"""Every switch of scheduler and cache leaves the tokens as they are, on a real model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams
from tests.roseinfer.conftest import config_of, traffic

pytestmark = pytest.mark.slow

#: Prompts that begin alike, some of them whole blocks, answered greedily or by a seed, some penalised.
PROMPTS, PARAMS = zip(
    *traffic(
        7, 22, [16, 32, 100, 160, 256], [0, 0, 1, 20, 90], max_tokens=range(1, 14), ignore_eos=[False, True],
        temperature=[0.0, 0.9], min_p=[0.0, 0.1], repetition_penalty=[1.0, 1.3], presence_penalty=[0.0, 1.0],
    ),
    strict=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def plain(gpt2_folder: Path) -> list[list[int]]:
    return LLM(config_of(gpt2_folder, overlap_schedule=False, prefix_cache=False)).generate(PROMPTS, PARAMS)


@pytest.mark.parametrize(
    "settings",
    [
        {"overlap_schedule": True},
        {"overlap_schedule": True, "late_launch": True},
        {"prefix_cache": True},
        {"chunked_prefill_size": 24},
        {"decode_first": False, "prefill_max_tokens": 2048},
        {"prefer": "latency", "target_ttft_ms": 50.0},
        {"prefer": "first-token", "target_tpot_ms": 2.0, "overlap_schedule": True},
        {"max_batch_size": 5},
        {"kv_tokens": 800, "prefill_max_tokens": 2048},
        {"kv_tokens": 500, "prefill_max_tokens": 2048, "overlap_schedule": True, "prefix_cache": True},
        {
            "kv_tokens": 500, "overlap_schedule": True, "prefix_cache": True, "chunked_prefill_size": 24,
            "admission_policy": "pack", "max_batch_size": 7, "prefill_max_tokens": 300,
        },
    ],
    ids=lambda settings: "+".join(settings),
)  # fmt: skip
def test_the_same_tokens(gpt2_folder: Path, plain: list[list[int]], settings: dict[str, object]) -> None:
    llm = LLM(config_of(gpt2_folder, **({"prefix_cache": False} | settings)))
    for _ in range(2 if "prefix_cache" in settings else 1):  # the second time, it has whole prompts
        assert llm.generate(PROMPTS, PARAMS) == plain
        llm.engine.check_idle()
    engine = llm.engine
    assert (engine.cached_tokens > engine.prompt_tokens / 4) == settings.get("prefix_cache", False)
    assert (engine.preemptions > 0) == ("kv_tokens" in settings)


def test_a_flush_forgets_prefixes_and_ends_no_request(gpt2_folder: Path, plain: list[list[int]]) -> None:
    llm = LLM(config_of(gpt2_folder, prefix_cache=True))
    engine = llm.engine
    longest = max(range(len(PROMPTS)), key=lambda index: len(plain[index]))
    for _ in range(2):
        answer: list[int] = []
        engine.add(0, np.array(PROMPTS[longest], dtype=np.int32), PARAMS[longest])
        while (step := engine.step()) is not None:
            answer += step.tokens.tolist()
            engine.flush_cache()
            assert all(end.cached_tokens == 0 for end in step.finished)
        assert answer == plain[longest]
    engine.check_idle()
    assert engine.prompt_tokens == engine.cached_tokens == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_requests_that_leave_at_any_step_leave_nothing(gpt2_folder: Path, overlap: bool) -> None:
    """Answers of other requests do not change, and every block is free at the end."""
    settings = {"overlap_schedule": overlap, "chunked_prefill_size": 48, "kv_tokens": 600}
    llm = LLM(config_of(gpt2_folder, prefix_cache=True, **settings))
    engine, prompt = llm.engine, list(range(7, 107))
    params = SamplingParams(12, ignore_eos=True)
    (alone,) = llm.generate([prompt], params)
    for leaves_after in range(0, 12, 2):
        answer: list[int] = []
        for id, first in enumerate((7, 8, 9, 7)):
            engine.add(id, np.array([first, *prompt[1:]], dtype=np.int32), params)
        for step in range(200):
            if step == leaves_after:
                assert all(engine.discard(id) for id in (1, 2))
            result = engine.step()
            if result is None:
                break
            assert step < leaves_after or not set(result.ids.tolist()) & {1, 2}
            answer += result.tokens[result.ids == 0].tolist()
        assert answer == alone
        engine.check_idle()


@pytest.mark.parametrize("overlap_schedule", [False, True])
def test_choices_of_one_prompt_compute_it_once(gpt2_folder: Path, overlap_schedule: bool) -> None:
    settings = {"prefix_cache": True, "prefill_max_tokens": 2048, "overlap_schedule": overlap_schedule}
    engine = LLM(config_of(gpt2_folder, **settings)).engine
    prompt, params = np.array(PROMPTS[0], dtype=np.int32), SamplingParams(max_tokens=3, ignore_eos=True)
    engine.submit(0, prompt, params, submitted=0.0, choices=4)
    answers: dict[int, list[int]] = {choice: [] for choice in range(4)}
    while (step := engine.step()) is not None:
        for id, token in zip(step.ids.tolist(), step.tokens.tolist(), strict=True):
            answers[id].append(token)
    assert len(prompt) > 100 and answers == dict.fromkeys(answers, answers[0])
    assert engine.cached_tokens >= 3 * (len(prompt) - 16)
    engine.check_idle()


def test_a_flush_forgets_which_experts_were_chosen(model_folder: Callable[[str], Path]) -> None:
    llm = LLM(config_of(model_folder("qwen3_moe")))
    assert llm.engine.expert_skew == 0
    llm.generate([[1, 2, 3]], [SamplingParams(max_tokens=4)])
    assert llm.engine.expert_skew >= 1
    llm.engine.flush_cache()
    assert llm.engine.expert_skew == 0
