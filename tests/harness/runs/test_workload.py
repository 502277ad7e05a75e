"""What a cell sends, and what warms its server up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.models.model_folder import ModelFolder
from harness.runs.resolved import model_context
from harness.runs.workload import MAX_STAGGERED, MAX_WARMUP_BATCH, Workload
from harness.schema.load import ClosedLoop, TraceLoad
from harness.schema.settings import OnlineSettings
from harness.workload import PlannedRequest

VOCAB, CONTEXT = 1000, 1024


def workload(context: int = CONTEXT, **settings: Any) -> Workload:
    return Workload.make(OnlineSettings(**settings), VOCAB, context)


def closed(concurrency: int, **settings: Any) -> Workload:
    return workload(concurrency=concurrency, **{"n": 1000, "input_len": 5, "output_len": 3} | settings)


def sizes_met(wave: list[PlannedRequest], rate: int) -> set[int]:
    """Batch sizes of an engine that admits `rate` prompts a step and gives each a token a step."""
    waiting, running, met = [request.output_tokens for request in wave], [], set()
    while waiting or running:
        running, waiting = running + waiting[:rate], waiting[rate:]
        met.add(len(running))
        running = [left - 1 for left in running if left > 1]
    return met


@given(concurrency=st.integers(1, MAX_STAGGERED), rate=st.integers(1, MAX_STAGGERED))
def test_auto_meets_every_batch_size_up_to_the_loads(concurrency: int, rate: int) -> None:
    waves = closed(concurrency).warmup_waves(seed=1)
    assert max(map(len, waves)) == concurrency
    met = set().union(*(sizes_met(wave, rate) for wave in waves))
    assert met >= set(range(1, concurrency + 1))


@settings(max_examples=20)
@given(st.integers(MAX_STAGGERED + 1, 600))
def test_a_large_load_is_reached_without_long_answers(concurrency: int) -> None:
    waves = closed(concurrency).warmup_waves(seed=1)
    assert len(waves[-1]) == concurrency
    assert max(request.output_tokens for wave in waves for request in wave) <= 8 + MAX_STAGGERED


@settings(max_examples=20)
@given(st.integers(1, 200), st.integers(1, 200))
def test_no_more_than_the_load_is_warmed_up(concurrency: int, n: int) -> None:
    load = closed(concurrency, n=n)
    assert load.concurrency() == min(concurrency, n)
    assert max(map(len, load.warmup_waves(seed=0))) == min(concurrency, n)


def test_an_open_load_is_as_large_as_its_busiest_moment_at_the_heaviest_scale() -> None:
    light, heavy = workload(scales=[1e9, 1e6]), workload(scales=[100, 0.01])
    assert light.concurrency() == 1
    assert heavy.concurrency() == MAX_WARMUP_BATCH
    assert len(heavy.warmup_waves(0)[-1]) == MAX_WARMUP_BATCH
    inputs = [len(request.prompt) for request in heavy.warmup_waves(0)[-1]]
    assert heavy.trace is not None
    assert set(inputs) <= set(heavy.trace.input_tokens.tolist())
    assert inputs == sorted(inputs) and len(set(inputs)) > 5


def test_the_help_says_how_large_a_warm_up_of_a_trace_is_at_most() -> None:
    told = OnlineSettings.model_fields["warmup"].description
    assert told is not None and f"of a trace those up to {MAX_WARMUP_BATCH};" in told


@given(
    context=st.integers(2, 200),
    concurrency=st.integers(1, 80),
    share=st.floats(0, 1),
)
def test_the_warm_up_fits_every_context_that_the_load_fits(
    context: int, concurrency: int, share: float
) -> None:
    input_len = max(1, min(context - 1, round(share * context)))
    load = closed(concurrency, context=context, input_len=input_len, output_len=context - input_len)
    for one in (request for wave in load.warmup_waves(0) for request in wave):
        assert len(one.prompt) >= 1 and one.output_tokens >= 1
        assert len(one.prompt) + one.output_tokens <= context


def test_warm_up_prompts_are_in_no_load_and_in_no_other_wave() -> None:
    load = workload(scales=[0.05], n=300, max_output_len=8, fit="clip")
    measured = [tuple(request.prompt[:8]) for request in load.requests(TraceLoad(scale=0.05), seed=5)]
    warming = [tuple(request.prompt[:8]) for wave in load.warmup_waves(seed=5) for request in wave]
    assert len(set(measured) | set(warming)) == len(measured) + len(warming)


def test_a_number_of_requests_or_none() -> None:
    assert [len(wave) for wave in closed(4, warmup=7).warmup_waves(0)] == [7]
    assert closed(4, warmup=0).warmup_waves(0) == []


def test_a_cell_is_its_scale_and_its_seed() -> None:
    load = workload(n=20)
    one, same, other = (load.requests(TraceLoad(scale=0.5), seed) for seed in (3, 3, 4))
    assert [a.prompt.tolist() for a in one] == [a.prompt.tolist() for a in same]
    assert all(a.prompt[:8].tolist() != b.prompt[:8].tolist() for a, b in zip(one, other, strict=True))
    slow = load.requests(TraceLoad(scale=2.0), 3)
    assert [a.t_sched_s * 4 for a in one] == pytest.approx([b.t_sched_s for b in slow])


def test_a_closed_loop_is_described() -> None:
    record = closed(4, n=10).record
    assert (record.requests, record.input_tokens, record.output_tokens) == (10, 50, 30)
    assert "4 requests in flight" in record.origin
    assert [request.t_sched_s for request in closed(4, n=2).requests(ClosedLoop(concurrency=4), 0)] == [
        None,
        None,
    ]


def test_a_closed_loop_has_its_rounds_at_each_level() -> None:
    load = workload(concurrency=[1, 4, 16], n=10, rounds=3, input_len=5, output_len=3)
    assert [len(load.requests(level, 0)) for level in load.settings.loads] == [10, 12, 48]
    assert load.concurrency() == 16
    assert (load.record.requests, load.record.input_tokens, load.record.output_tokens) == (70, 350, 210)
    assert [len(closed(16, n=4).requests(ClosedLoop(concurrency=16), 0)), closed(16, n=4).concurrency()] == [
        4,
        4,
    ]


def test_what_exceeds_the_context_is_refused() -> None:
    with pytest.raises(UsageError, match=r"20 \+ 13 tokens exceed the context of 32"):
        closed(1, context=32, input_len=20, output_len=13)


def test_the_context_is_the_models_or_what_was_asked() -> None:
    model = ModelFolder(Path("m"), "m", "m", vocab_size=99, max_model_len=128, tokenizer=True)
    assert model_context(OnlineSettings(), model) == (99, 128)
    assert model_context(OnlineSettings(max_model_len=64), model) == (99, 64)
    with pytest.raises(UsageError, match="--max-model-len 129 is above the model's 128"):
        model_context(OnlineSettings(max_model_len=129), model)
    with pytest.raises(UsageError, match="give --max-model-len"):
        model_context(OnlineSettings(), None)
    assert model_context(OnlineSettings(max_model_len=64, vocab_size=7), None) == (7, 64)
