"""Preferences, limits and the learned cost of steps, on a simulated GPU with a model of 8 billion weights."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.batch import NO_INTS
from roseinfer.bench.replay import Replayed, uniform
from roseinfer.bench.scheduler import Outcome, simulate
from roseinfer.config import EngineConfig
from roseinfer.scheduler.cost import RECENT, StepCost, StepCosts
from roseinfer.scheduler.policies import StepParts
from roseinfer.scheduler.weighed import AIMS, Weighed

#: About that of Qwen3-8B on an H200.
COST = StepCost(
    prompts=9e-4, prompt_token=21.8e-6, prompt_pair=1.9e-9, decode=3.95e-3, decode_row=9e-6,
    decode_context=42e-9, shared=3.1e-3,
)  # fmt: skip


@cache
def loop(in_flight: int = 32, **how: Any) -> Outcome:
    """A closed loop of 1,024 tokens in and 64 out."""
    arrivals = uniform(4 * in_flight, None, 1024, 64, seed=0)
    return simulate(EngineConfig(prefix_cache=False, **how), arrivals, COST, 3e-4, in_flight)


def p(outcome: Outcome, name: str, percentile: float) -> float:
    return float(np.percentile(outcome.replayed.spreads()[name], percentile))


def tokens_a_second(done: Replayed) -> float:
    return float(done.output_tokens.sum() / done.duration)


def test_each_preference_is_best_in_what_it_is_for() -> None:
    by = {prefer: loop(prefer=prefer) for prefer in AIMS}
    assert 3 * p(by["first-token"], "TTFT", 50) < p(by["balanced"], "TTFT", 50)
    assert min(by, key=lambda prefer: p(by[prefer], "TPOT", 50)) == "balanced"
    decode = COST.decode + 32 * (COST.decode_row + 1100 * COST.decode_context)
    assert p(by["balanced"], "ITL", 90) < 1.1 * decode
    assert p(by["latency"], "ITL", 99) < 3 * decode < p(by["throughput"], "ITL", 99)
    rates = {prefer: tokens_a_second(outcome.replayed) for prefer, outcome in by.items()}
    assert min(rates["throughput"], rates["latency"]) > rates["balanced"]


def test_prompts_without_end_let_others_decode() -> None:
    """More requests come than can be served. Only in bursts do others wait for all prompts."""
    arrivals = uniform(200, 60.0, 1024, 16, seed=0)
    done = simulate(EngineConfig(prefix_cache=False), arrivals, COST, 3e-4).replayed
    assert np.percentile(done.gaps, 99) < 0.1


@pytest.mark.parametrize("prefer", AIMS)
@pytest.mark.parametrize("target", [9.0, 16.0])
def test_the_gap_between_tokens_is_held(prefer: str, target: float) -> None:
    """For each request from the moment on that the costs are known; all end."""
    done = loop(prefer=prefer, target_tpot_ms=target).replayed
    assert len(done.finished) == 128
    assert done.spreads()["TPOT"][32:].max() < 1.02e-3 * target


def test_more_first_tokens_come_within_a_limit() -> None:
    """At the end of the loop: the first prompts come all at once."""
    plain, limited = loop(prefer="latency"), loop(prefer="latency", target_ttft_ms=100)
    waits = [(each.replayed.first - each.replayed.due)[64:] for each in (plain, limited)]
    late = [float((wait > 0.1).mean()) for wait in waits]
    assert late[0] > 0.9 and late[1] < 0.4


def test_a_long_prompt_takes_few_steps_beside_others() -> None:
    """Each of them waits for memory as one without prompts does, and reads all keys before it again. A short
    prompt takes as many as keep a step brief, and so does a long one within a limit of the gap."""
    costs = StepCosts()
    costs.know(COST)

    def budget(longest: int, rest: int, **limits: Any) -> int:
        parts = StepParts(lambda *_, **__: [], lambda: NO_INTS, 3, 2, 40_000, (longest, rest), 64_000)
        return Weighed(costs, AIMS["balanced"], rows=2048, **limits).budget(parts, 2)

    brief = budget(0, 0)
    assert budget(32_000, 30_000) == 8_000 and budget(32_000, 5_900) == 5_900
    assert budget(4_000, 4_000) == budget(32_000, 100) == budget(32_000, 30_000, most=2_048) == brief < 2_048
    assert budget(32_000, 30_000, tpot=0.03) < brief


def test_what_is_learned_is_the_cost() -> None:
    costs = loop(prefer="throughput").costs
    assert costs.error < 0.01
    assert costs.prompts_s(1024) == pytest.approx(24.2e-3, rel=0.1)
    assert costs.decode_s(32, 35_000) == pytest.approx(5.7e-3, rel=0.02)


def noted(costs: StepCosts, count: int, cost: StepCost, slow: float = 1.0) -> None:
    """Note `count` steps, with prompts and without in turns."""
    rng = np.random.default_rng(0)
    for index in range(count):
        prompts = [SimpleNamespace(count=int(rng.integers(1, 2000)), context=0)] * (index % 2)
        lengths = rng.integers(1, 2000, rng.integers(0 if prompts else 1, 64))
        batch: Any = SimpleNamespace(segments=prompts, decode_lengths=lengths, verifying=0)
        costs.note(batch, cost.seconds(batch) * slow)
        costs.update()


@settings(max_examples=10)
@given(st.floats(0.2, 5))
def test_what_is_learned_follows_the_device(factor: float) -> None:
    """A pause of the host changes little, and a device that slows down is learned again."""
    costs = StepCosts()
    noted(costs, 2 * RECENT, COST)
    first = costs.prompts_s(1024)
    noted(costs, 2, COST, slow=1000)
    noted(costs, 100, COST)
    assert costs.prompts_s(1024) == pytest.approx(first, rel=0.1)
    noted(costs, 4 * RECENT, COST, slow=factor)
    assert costs.prompts_s(1024) == pytest.approx(factor * first, rel=0.02)
