"""Scheduler and loop over random traffic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.prefix import NoPrefixCache
from roseinfer.request.params import FinishReason, SamplingParams
from roseinfer.scheduler.admission import Fifo, Pack
from roseinfer.scheduler.policies import (
    MOST_IN_A_ROW,
    Alternate,
    ChunkedPrompts,
    FillUp,
    Policies,
    WholePrompts,
)
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler

from .cache_model import BLOCK, EOS, LOOKAHEAD, SETUPS, Job, Setup, jobs_of, serve


@settings(max_examples=150)
@given(
    setup=SETUPS,
    jobs=st.sampled_from([1, 4]).flatmap(lambda clients: st.lists(jobs_of(clients), min_size=1, max_size=25)),
)
def test_every_answer_is_right_and_comes_once(setup: Setup, jobs: list[Job]) -> None:
    """Any arrivals of one client or several, any that leave, any policy, any cache that holds the longest
    request alone."""
    outcome = serve(setup, jobs)
    for id, job in enumerate(jobs):
        answer, expected = outcome.answers.get(id, []), job.answer(id)
        if id in outcome.left:
            assert outcome.ended[id] == 0 and answer == expected[: len(answer)]
        else:
            assert outcome.ended[id] == 1 and answer == expected
            stopped = expected[-1] == EOS and not job.ignore_eos and len(expected) >= job.params().min_tokens
            assert outcome.reasons[id] is (FinishReason.STOP if stopped else FinishReason.LENGTH)
    for client in range(4) if isinstance(setup.policies.admission, Fifo) else ():
        admitted = [id for id in outcome.admitted if jobs[id].client == client]
        assert admitted == sorted(admitted), "first come, first served"
    for place, id in enumerate(outcome.admitted if len({job.client for job in jobs}) == 1 else ()):
        passed = place - sum(other < id for other in outcome.admitted)
        assert passed <= LOOKAHEAD * (id + 1), "passed too often"


def crowd(count: int = 100) -> list[Job]:
    rng = np.random.default_rng(4)
    return [
        Job(int(rng.integers(2)), int(rng.choice([0, 8, 16])), int(rng.integers(1, 9)),
            int(rng.integers(1, 21)), 0, bool(rng.integers(2)), int(rng.integers(60)), None)
        for _ in range(count)
    ]  # fmt: skip


def test_every_switch_gives_the_same_answers() -> None:
    """A crowd that does not fit the cache; that the switches did something is checked too."""
    jobs = crowd()
    plain = serve(Setup(400, 8, Policies(8, 4, 40), prefix_cache=False, overlap=False), jobs)
    assert plain.preemptions == 0 and not any(plain.cached.values())
    for prefix_cache in (False, True):
        for overlap in (False, True):
            for chunking in (WholePrompts(), ChunkedPrompts(5)):
                policies = Policies(6, 4, 40, Pack(LOOKAHEAD), chunking)
                outcome = serve(Setup(18, 8, policies, prefix_cache, overlap), jobs)
                assert outcome.answers == plain.answers and outcome.reasons == plain.reasons
                assert outcome.preemptions > 10
                assert any(outcome.cached.values()) == prefix_cache


def test_a_prompt_that_is_cached_whole_computes_one_token_in_a_copied_block() -> None:
    job = Job(0, 16, 0, 6, 0, True, 0, None)
    setup = Setup(20, 4, Policies(4, 4, 64), prefix_cache=True, overlap=False)
    outcome = serve(setup, [job, *[replace(job, arrives_after=20)] * 3])
    assert outcome.cached == {0: 0, 1: 15, 2: 15, 3: 15}
    assert all(answer == job.answer(0) for answer in outcome.answers.values())


def test_decoding_requests_take_turns() -> None:
    """A step has room for two of six requests: none waits for more than one turn of the others."""
    jobs = [Job(0, 0, 1, 12, 0, True, 0, None)] * 6
    setup = Setup(40, 6, Policies(2, 6, 64), prefix_cache=False, overlap=False)
    counts: Counter[int] = Counter()
    for ids in serve(setup, jobs).steps:
        counts.update(ids)
        assert max(counts.values()) - min(counts[id] for id in range(6)) <= 1
    assert set(counts.values()) == {12}


@settings(max_examples=60)
@given(
    short=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30)), min_size=20, max_size=70),
    prompts=st.integers(1, 3),
    rows=st.integers(2, 8),
    overlap=st.booleans(),
)
def test_decoding_continues_whatever_arrives(
    short: list[tuple[int, int]], prompts: int, rows: int, overlap: bool
) -> None:
    """Prompts are computed step after step, as their answers are too short to fill the rows."""
    jobs = [Job(0, 0, 4, 20, 0, True, 0, None)]
    jobs += [
        Job(0, 0, 4, tokens, 0, True, after, None) for tokens, after in sorted(short, key=lambda s: s[1])
    ]
    policies = Policies(rows, prompts, 40, composition=Alternate())
    outcome = serve(Setup(400, rows, policies, prefix_cache=False, overlap=overlap), jobs)
    for id in range(len(jobs)):
        steps = [step for step, ids in enumerate(outcome.steps) if id in ids]
        assert all(b - a <= MOST_IN_A_ROW + 1 for a, b in pairwise(steps))


def test_the_first_in_the_queue_is_passed_a_bounded_number_of_times() -> None:
    """One large request among many small ones that keep the cache full."""
    small, large = Job(0, 0, 4, 12, 0, True, 0, None), Job(0, 0, 8, 20, 0, True, 2, None)
    jobs = [*[small] * 6, replace(large, rest=40), *[small] * 60]
    setup = Setup(15, 8, Policies(8, 8, 64, Pack(LOOKAHEAD)), prefix_cache=False, overlap=True)
    admitted = serve(setup, jobs).admitted
    assert 0 < sum(other > 6 for other in admitted[: admitted.index(6)]) <= LOOKAHEAD
    fifo = replace(setup, policies=Policies(8, 8, 64))
    assert serve(fifo, jobs).admitted == list(range(67))


@dataclass(frozen=True)
class NextTurn(Job):
    """Continues the answer that the same request got before, with another word."""

    def prompt(self, id: int) -> np.ndarray:
        return np.array([*super().prompt(0), *super().answer_to(super().prompt(0)), 1], dtype=np.int32)


@given(rest=st.integers(1, 8), max_tokens=st.integers(1, 12), overlap=st.booleans())
@settings(max_examples=40)
def test_the_next_turn_of_a_conversation_finds_the_answer(rest: int, max_tokens: int, overlap: bool) -> None:
    """All whole blocks of the prompt and of the answer without its last token."""
    first = Job(0, 8, rest, max_tokens, 0, False, 0, None)
    turns = [first, NextTurn(0, 8, rest, max_tokens, 0, False, 30, None)]
    outcome = serve(Setup(20, 2, Policies(2, 2, 64), prefix_cache=True, overlap=overlap), turns)
    assert outcome.answers == {id: turn.answer(id) for id, turn in enumerate(turns)}
    assert outcome.cached[1] == (8 + rest + len(outcome.answers[0]) - 1) // BLOCK * BLOCK


def scheduler_of(policies: Policies, prompts: int) -> Scheduler:
    """With that many requests of 40 tokens, each of another client."""
    running, allocator = Running(8, 64, 4), BlockAllocator(200)
    scheduler = Scheduler(running, allocator, NoPrefixCache(allocator, 4), policies, ())
    for client in range(prompts):
        prompt = np.zeros(40, dtype=np.int32)
        scheduler.add(
            Request(client, prompt, SamplingParams(20, ignore_eos=True), 0.0, prompt, client=client)
        )
    return scheduler


@pytest.mark.parametrize("rows", [4, 64, 4096])
def test_parts_of_prompts_keep_to_the_limit_of_a_step(rows: int) -> None:
    scheduler = scheduler_of(Policies(8, 8, 16, composition=FillUp(((8, rows),))), 4)
    batch = scheduler.prepare()
    assert batch is not None and 0 < batch.decode_start <= 16


def test_a_client_whose_request_is_put_back_keeps_what_it_was_given() -> None:
    scheduler = scheduler_of(Policies(8, 8, 64), 1)
    batch = scheduler.prepare()
    assert batch is not None
    scheduler.launched(batch)
    scheduler.process(batch, np.array([5]))
    before = scheduler._waiting._served[0]
    scheduler._preempt(int(batch.requests[0]))
    assert before == 40 and scheduler._waiting._served[0] == 41
