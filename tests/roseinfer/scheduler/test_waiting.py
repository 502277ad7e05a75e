"""Several clients: each gets its part, whoever asks for how much."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.admission import Fifo, Pack
from roseinfer.scheduler.policies import ChunkedPrompts, Policies, decode_first, prefill_first
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.waiting import Waiting

from .cache_model import LOOKAHEAD, Job, Setup, serve

FLOOD = Job(0, 0, 4, 20, 0, True, 0, None, client=1)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("composition", [decode_first, prefill_first])
@pytest.mark.parametrize("num_blocks", [400, 26])
def test_a_stranger_does_not_wait_for_a_flood(overlap: bool, composition: object, num_blocks: int) -> None:
    """One token for each of those who come while rows, or blocks, are full and a hundred wait."""
    strangers = [Job(0, 0, 6, 1, 0, True, 12 * turn, None, client=1 + turn) for turn in range(1, 4)]
    jobs = sorted([*[FLOOD] * 100, *strangers], key=lambda job: job.arrives_after)
    policies = Policies(8, 4, 40, composition=composition)  # type: ignore[arg-type]
    outcome = serve(Setup(num_blocks, 4, policies, prefix_cache=False, overlap=overlap), jobs)
    for id in range(100, 103):
        arrived = jobs[id].arrives_after
        assert any(id in ids for ids in outcome.steps[arrived - 1 : arrived + 5])
    assert outcome.preemptions >= 1
    assert all(outcome.answers[id] == job.answer(id) for id, job in enumerate(jobs))


def test_a_client_that_got_more_waits_its_turn() -> None:
    """It has lost its row, as blocks ran out, to one that got less and has two: preempting one of those would
    not help, since that would be the next to be admitted, and lose its first chunk again, and again."""
    jobs = [Job(0, shared, rest, tokens, 0, False, 0, None, client) for shared, rest, tokens, client in
            ((8, 6, 9, 0), (0, 1, 6, 0), (16, 0, 8, 1), (0, 1, 2, 0))]  # fmt: skip
    policies = Policies(1, 1, 1, Fifo(), ChunkedPrompts(1), prefill_first)
    outcome = serve(Setup(11, 3, policies, prefix_cache=False, overlap=False), jobs)
    assert outcome.answers == {id: job.answer(id) for id, job in enumerate(jobs)}
    assert outcome.preemptions == 2


@pytest.mark.parametrize("admission", [Fifo(), Pack(LOOKAHEAD)])
def test_tokens_are_shared(admission: Fifo | Pack) -> None:
    """Between one with long answers, one with short ones and one with long prompts, however many each asks
    for: while all wait, none has got more than another by what its part of the rows may hold."""
    long, short = FLOOD, replace(FLOOD, max_tokens=5, client=2)
    prompts = Job(0, 0, 30, 4, 0, True, 0, None, 3)
    jobs = [*[long] * 40, *[prompts] * 40, *[short] * 160]
    policies = Policies(6, 6, 64, admission)
    outcome = serve(Setup(400, 6, policies, prefix_cache=False, overlap=True), jobs)
    admitted = np.array([[jobs[id].client == client for client in (1, 2, 3)] for id in outcome.admitted])
    tokens = np.array([24, 9, 34])
    tokens_of = np.array(list(accumulate((row * tokens for row in admitted), np.add)))
    contested = tokens_of[: np.argmax(admitted[:, 0].cumsum() == 40)]
    assert len(contested) > 60
    assert (contested.max(1) - contested.min(1)).max() <= 6 * 34


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)), max_size=40))
def test_nothing_is_lost_or_kept(steps: list[tuple[int, int, int]]) -> None:
    """Requests come, are admitted, put back, leave: the order holds each that waits once, and nothing is
    remembered in the end."""
    waiting, waits, runs = Waiting(), set[int](), list[Request]()
    for id, (action, client, tokens) in enumerate(steps):
        if action == 0:
            prompt = np.zeros(1, dtype=np.int32)
            waiting.add(Request(id, prompt, SamplingParams(1), 0.0, prompt, client))
            waits.add(id)
        elif action == 1 and waits:
            request = next(iter(waiting))
            waiting.admit(request, tokens)
            waits.remove(request.id)
            runs.append(request)
        elif action >= 2 and runs:
            request = runs.pop(tokens % len(runs))
            waiting.left(request.client, tokens)
            if action == 3:
                waiting.put_back(request)
                waits.add(request.id)
        assert sorted(request.id for request in waiting) == sorted(waits) and len(waiting) == len(waits)
    for request in runs:
        waiting.left(request.client, 1)
    for id in waits:
        assert waiting.discard(id) and not waiting.discard(id)
    assert waiting.num_clients == 0 and not waiting.running and not list(waiting)


def test_of_clients_with_equally_many_tokens_one_without_running_requests_is_next() -> None:
    waiting, prompt = Waiting(), np.zeros(1, dtype=np.int32)
    for id, client in enumerate((1, 1, 1, 2)):
        waiting.add(Request(id, prompt, SamplingParams(1), 0.0, prompt, client))
        if id == 0:
            waiting.admit(next(iter(waiting)), 0)
    assert [request.client for request in waiting] == [2, 1, 1]
