"""Penalties, biases and stop tokens, against transformers' processors and OpenAI's formula."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from roseinfer.batch import UNKNOWN
from roseinfer.engine.adjustments import Adjustments
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams
from tests.roseinfer.conftest import Requests, config_of, reference_logits, traffic

VOCAB, EOS = 23, (4, 9)

PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(9),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 10.0]),
    presence_penalty=st.sampled_from([0.0, 1.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.3]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 0.5, 100.0]), max_size=3)
    .map(dict.items)
    .map(tuple),
    min_tokens=st.integers(0, 9),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
REQUEST = st.tuples(PARAMS, TOKENS.filter(bool), TOKENS)


def expected(
    logits: torch.Tensor, prompt: list[int], answer: list[int], params: SamplingParams
) -> torch.Tensor:
    """Adjusted logits `[vocab]` of one request, in float32."""
    ids, row = torch.tensor([prompt + answer]), logits[None].float()
    if params.logit_bias:
        row = SequenceBiasLogitsProcessor([[[token], bias] for token, bias in params.logit_bias])(ids, row)
    row = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, row)[0]
    counts = torch.bincount(torch.tensor(answer, dtype=torch.int64), minlength=len(row))
    row = row - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
    ends = [*params.stop_token_ids, *(() if params.ignore_eos else EOS)]
    if not params.min_tokens or not ends:
        return row
    mask = MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, ends, "cpu")
    return mask(ids, row[None])[0]


@pytest.mark.parametrize("fused", [False, True])
@given(
    requests=st.lists(st.none() | REQUEST, min_size=1, max_size=6),
    seed=st.integers(0, 99),
    seen=st.booleans(),
    cut=st.integers(0, 6),
)
def test_logits_of_a_step(fused, requests, seed, seen, cut):
    """Some rows are adjusted; the last tokens may be known to the device alone; a step may be sampled in two
    parts. What the model gave is left as it is. `fused`: Triton's kernels, in its interpreter."""
    if fused:
        pytest.importorskip("triton", reason="Triton is not installed")
    logits = torch.randn(len(requests), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    asking = [(row, *request) for row, request in enumerate(requests) if request is not None]
    newest = torch.zeros(len(requests), dtype=torch.int64)
    tokens = np.full((len(asking), 24), 5, dtype=np.int32)
    for at, (row, _, prompt, answer) in enumerate(asking):
        tokens[at, : len(prompt + answer)] = prompt + answer
        if answer and not seen:
            newest[row], tokens[at, len(prompt + answer) - 1] = answer[-1], UNKNOWN
    adjustments = Adjustments(
        np.array([row for row, *_ in asking], dtype=np.int64),
        tokens,
        np.array([len(prompt) for *_, prompt, _ in asking], dtype=np.int64),
        np.array([len(prompt + answer) for *_, prompt, answer in asking], dtype=np.int64),
        [params for _, params, _, _ in asking],
        (*EOS, VOCAB),  # the last is none of the model's
    )
    before, results = logits.clone(), []
    for start, count in (
        (0, min(cut, len(requests))),
        (min(cut, len(requests)), max(len(requests) - cut, 0)),
    ):
        part, rows = adjustments.part(start, count), slice(start, start + count)
        results += list(logits[rows] if part is None else part.apply(logits[rows], newest[rows], fused=fused))
    for row, request in enumerate(requests):
        adjusted = logits[row]
        if request is not None:
            params, prompt, answer = request
            adjusted = expected(logits[row], prompt, answer, params)
        torch.testing.assert_close(results[row], adjusted, rtol=1e-6, atol=1e-6)
    assert torch.equal(logits, before)


def requests() -> Requests:
    """Greedy ones; a third asks for nothing."""
    plain = traffic(10, 6, [0], range(1, 60), max_tokens=[12])
    return plain + traffic(
        11, 12, [0], range(1, 60), max_tokens=range(4, 24), repetition_penalty=[1.0, 1.3],
        presence_penalty=[0.0, 1.5], frequency_penalty=[0.0, 1.0], logit_bias=[((77, 7.5),), ((1999, 7.5),)],
    )  # fmt: skip


@pytest.mark.parametrize(
    "switches",
    [{}, {"overlap_schedule": True, "kv_tokens": 320, "block_size": 4, "prefill_max_tokens": 300}],
    ids=["plain", "overlapped and preempting"],
)
def test_answers(gpt2_folder: Path, switches: dict[str, Any]) -> None:
    """Every token is the likeliest after transformers' processors, within 1e-3 of a logit."""
    llm = LLM(config_of(gpt2_folder, **switches))
    prompts, params = zip(*requests(), strict=True)
    answers = llm.generate(prompts, params)
    assert (llm.engine.preemptions > 0) == bool(switches)
    plain = llm.generate(prompts, [SamplingParams(how.max_tokens, ignore_eos=True) for how in params])
    assert sum(a != b for a, b in zip(answers, plain, strict=True)) > 6
    for prompt, how, answer in zip(prompts, params, answers, strict=True):
        logits = reference_logits(gpt2_folder, prompt + answer)[len(prompt) - 1 : -1]
        for place, token in enumerate(answer):
            row = expected(logits[place], prompt, answer[:place], how)
            assert row[token] > row.max() - 1e-3


@pytest.mark.parametrize("overlap", [False, True])
def test_no_end_before_min_tokens(gpt2_folder: Path, overlap: bool) -> None:
    """Each token is the likeliest of those that do not end the answer, until it has `min_tokens`, whatever
    else is in the batch; where nothing would end it, it is as without."""
    llm = LLM(config_of(gpt2_folder, overlap_schedule=overlap))
    prompts = [prompt for prompt, _ in requests()]
    free = SamplingParams(12, ignore_eos=True)
    plain = llm.generate(prompts, free)
    params = [
        msgspec.structs.replace(free, min_tokens=index % 12, stop_token_ids=tuple(answer[1:3]))
        for index, answer in enumerate(plain)
    ]
    masked = 0
    for prompt, how, answer in zip(prompts, params, llm.generate(prompts, params), strict=True):
        logits = reference_logits(gpt2_folder, prompt + answer)[len(prompt) - 1 : -1]
        stops = list(how.stop_token_ids)
        for place, (token, row) in enumerate(zip(answer, logits, strict=True)):
            if place < how.min_tokens:
                masked += int(row.argmax()) in stops
                row = row.index_fill(0, torch.tensor(stops), -torch.inf)
            assert row[token] > row.max() - 1e-3
        assert not {*answer[:-1]} & {*stops}
        assert len(answer) == 12 or (len(answer) > how.min_tokens and answer[-1] in stops)
    assert masked > 10
    assert llm.generate(prompts, msgspec.structs.replace(free, min_tokens=12)) == plain


class Read(tuple[tuple[int, float], ...]):
    """Counts how often it is read."""

    times = 0

    def __iter__(self) -> Iterator[tuple[int, float]]:
        self.times += 1
        return super().__iter__()


def test_biases_are_not_read_again_in_every_step() -> None:
    """1,024 of them in each of many requests would take most of a step."""
    biases, row = Read(((3, 1.5), (7, -2.0))), np.zeros(1, dtype=np.int64)
    params = SamplingParams(9, logit_bias=biases)
    adjustments = Adjustments(row, np.zeros((1, 2), dtype=np.int32), row + 1, row + 2, [params])
    checked = biases.times
    for _ in range(5):
        adjusted = adjustments.apply(torch.zeros(1, VOCAB), torch.zeros(1, dtype=torch.int64))
    assert adjusted[0, 3] == 1.5 and adjusted[0, 7] == -2 and adjusted.count_nonzero() == 2
    assert biases.times - checked <= 1
