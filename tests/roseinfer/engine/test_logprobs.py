"""DeviceLogprobs against their definition and against transformers, whatever else runs in the same batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.engine.core import Engine
from roseinfer.engine.logprobs import collect, logprob_rows, logprobs, step_logprobs
from roseinfer.request.params import RequestError, SamplingParams
from tests.roseinfer.conftest import Requests, config_of, generate, reference_logits, traffic

pytestmark = pytest.mark.slow


@given(rows=st.integers(1, 5), k=st.integers(0, 25), seed=st.integers(0, 99), half=st.booleans())
def test_definition(rows: int, k: int, seed: int, half: bool) -> None:
    """float32 and bfloat16 logits, of which many are equal, over a vocabulary of 23."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, 23, generator=generator) * 9).to(torch.bfloat16 if half else torch.float32)
    before = logits.clone()
    sampled = torch.randint(0, 23, (rows,), generator=generator)
    reported = logprobs(logits, sampled, k)
    assert torch.equal(logits, before), "the sampler's logits are left as they are"
    wide = logits.double().numpy()
    expected = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    assert np.allclose(np.take_along_axis(expected, reported.tokens.numpy(), -1), reported.values, atol=1e-5)
    assert reported.tokens[:, 0].tolist() == sampled.tolist()
    likeliest = reported.tokens[:, 1:].tolist()
    assert np.allclose(reported.values[:, 1:], -np.sort(-expected)[:, :k], atol=1e-5)
    assert all(len({*row}) == min(k, 23) for row in likeliest)
    if k:
        for row, (token, others) in enumerate(zip(sampled.tolist(), likeliest, strict=True)):
            assert (others[0] == token) == (wide[row, token] == wide[row].max())


def test_rows_do_not_depend_on_others() -> None:
    """Neither on how many rows there are, nor on how many top tokens another asks for; with a vocabulary so
    large that PyTorch splits the sum of one row over its threads."""
    generator, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for _ in range(40):
            logits = (torch.randn(4, 49_152, generator=generator) * 2).bfloat16()
            sampled = torch.randint(0, 49_152, (4,), generator=generator)
            all_rows, alone = logprobs(logits, sampled, 20), logprobs(logits[:1], sampled[:1], 2)
            assert torch.equal(all_rows.tokens[:1, :3], alone.tokens)
            assert torch.equal(all_rows.values[:1, :3], alone.values)
    finally:
        torch.set_num_threads(before)


@given(top_tokens=st.lists(st.integers(-1, 3), min_size=1, max_size=8), data=st.data())
def test_logprobs_of_a_step_in_parts(top_tokens: list[int], data: st.DataObject) -> None:
    """Prompts and decode rows launched apart, with padding after either, give the same as together."""
    ids, cut = np.arange(len(top_tokens)) + 70, data.draw(st.integers(0, len(top_tokens)))
    logits = torch.randn(len(top_tokens), 23, generator=torch.Generator().manual_seed(cut))
    sampled = torch.arange(len(top_tokens))
    padded = [torch.cat((part, torch.full((2, 23), 99.0))) for part in (logits[:cut], logits[cut:])]
    requested = logprob_rows(np.array(top_tokens), ids)
    parts = step_logprobs(padded[0], sampled[:cut], requested) + step_logprobs(
        padded[1], sampled[cut:], requested, cut
    )
    if requested is None:
        assert max(top_tokens) == -1 and not parts
        return
    apart, together = collect(requested, parts), collect(requested, step_logprobs(logits, sampled, requested))
    asking = [row for row, k in enumerate(top_tokens) if k >= 0]
    assert apart.ids.tolist() == [70 + row for row in asking]
    assert apart.tokens[:, 0].tolist() == asking and apart.tokens.shape[1] == 1 + max(top_tokens)
    assert np.array_equal(apart.tokens, together.tokens) and np.allclose(apart.values, together.values)


#: Requests of one run.
COUNT = 16


def requests(seed: int, **choices: Any) -> Requests:
    """With common beginnings, greedy or sampled; a third of them asks for nothing."""
    how: dict[str, Any] = {"temperature": [0.0, 0.9], "top_p": [1.0, 0.7], "logprobs": [None, 0, 5]} | choices
    return traffic(seed, COUNT, [0, 32, 160], range(1, 60), max_tokens=range(1, 14), **how)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"overlap_schedule": True, "prefix_cache": True, "chunked_prefill_size": 24},
        {"overlap_schedule": True, "kv_tokens": 320, "block_size": 4},
    ],
    ids=["plain", "cached", "preempting"],
)
def test_against_transformers(gpt2_folder: Path, switches: dict[str, Any]) -> None:
    """Every token's logprobs are within 1e-4 of transformers' log-softmax at the same place."""
    engine = Engine(config_of(gpt2_folder, **switches))
    answers = generate(engine, requests(1))
    assert (engine.preemptions > 0) == ("kv_tokens" in switches)
    for (prompt, params), answer in zip(requests(1), answers, strict=True):
        tokens, reported = answer.tokens, answer.logprobs
        if params.logprobs is None:
            assert not reported
            continue
        assert len(reported) == params.max_tokens
        logits = reference_logits(gpt2_folder, prompt + tokens)[len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits.double(), -1)
        at = torch.tensor([step.tokens[: 1 + params.logprobs] for step in reported])
        values = torch.tensor([step.values[: 1 + params.logprobs] for step in reported], dtype=torch.float64)
        assert (values - expected.gather(-1, at)).abs().max() < 1e-4
        if params.logprobs:
            assert (values[:, 1:] - expected.topk(params.logprobs).values).abs().max() < 1e-4
            assert params.temperature > 0 or torch.equal(at[:, 0], at[:, 1])


@pytest.mark.parametrize(("chunk", "overlap"), [(None, False), (24, True)])
def test_logprobs_of_prompts_come_once(gpt2_folder: Path, chunk: int | None, overlap: bool) -> None:
    """Also of those whose requests lose their blocks, within the prompt or after it, and then find some of
    them in the prefix cache."""
    settings = {"kv_tokens": 256, "block_size": 4, "max_model_len": 256, "prefix_cache": True}
    switches = {"chunked_prefill_size": chunk, "overlap_schedule": overlap}
    engine = Engine(config_of(gpt2_folder, **settings, **switches))
    prompts = [prompt for prompt, _ in requests(2)]
    for id, prompt in enumerate(prompts):
        engine.add(id, np.array(prompt, np.int32), SamplingParams(8, ignore_eos=True, prompt_logprobs=1))
    reported: Counter[tuple[int, int]] = Counter()
    while (step := engine.step()) is not None:
        if step.prompt_logprobs is not None:
            reported.update((id, position) for id, position, _ in step.prompt_logprobs.of_prompts())
    assert engine.preemptions > 0
    places = [(id, place) for id, prompt in enumerate(prompts) for place in range(1, len(prompt))]
    assert reported == Counter(places)


def test_logprobs_of_prompts_that_a_runner_cannot_give_are_refused(gpt2_folder: Path) -> None:
    engine = Engine(config_of(gpt2_folder, kv_tokens=320))
    runner = msgspec.structs.replace(engine.info.runner, prompt_logprobs=False)
    engine.info = msgspec.structs.replace(engine.info, runner=runner)
    with pytest.raises(RequestError, match="logprobs of prompts"):
        engine.add(0, np.array([1], np.int32), SamplingParams(1, prompt_logprobs=1))
    assert not engine.has_work


@pytest.fixture(scope="module")
def engine(gpt2_folder: Path) -> Engine:
    return Engine(config_of(gpt2_folder, overlap_schedule=True, prefill_max_batch_size=4))


@pytest.fixture(scope="module")
def silent(engine: Engine) -> list[list[int]]:
    """The tokens when no request asks."""
    return [answer.tokens for answer in generate(engine, requests(1, logprobs=[None]))]


@settings(max_examples=3)
@given(asking=st.lists(st.sampled_from([None, 0, 1, 20]), min_size=COUNT, max_size=COUNT))
def test_who_asks_changes_no_token(engine: Engine, silent: list[list[int]], asking: list[int | None]) -> None:
    parts = zip(requests(1, logprobs=[None]), asking, strict=True)
    some = [(prompt, msgspec.structs.replace(params, logprobs=k)) for (prompt, params), k in parts]
    answers = generate(engine, some)
    assert [answer.tokens for answer in answers] == silent
    for k, answer in zip(asking, answers, strict=True):
        assert len(answer.logprobs) == (0 if k is None else len(answer.tokens))
        assert all(len(step.tokens) > k for step in answer.logprobs if k is not None)
