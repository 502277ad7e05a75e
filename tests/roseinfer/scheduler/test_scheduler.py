"""Scheduler and loop over random traffic: answers, contents of steps, and whose turn it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.batch import NO_INTS, Ints
from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.prefix import NoPrefixCache
from roseinfer.request.params import FinishReason, SamplingParams
from roseinfer.scheduler.admission import Fifo, Pack
from roseinfer.scheduler.cost import UNLIMITED, StepCosts
from roseinfer.scheduler.policies import (
    MOST_IN_A_ROW,
    Alternate,
    Chunk,
    ChunkedPrompts,
    Composition,
    Policies,
    StepParts,
    TakeAlong,
    WholePrompts,
    decode_first,
    prefill_first,
)
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler
from roseinfer.scheduler.waiting import Waiting
from roseinfer.scheduler.weighed import Weighed

from .cache_model import BLOCK, EOS, LOOKAHEAD, SETUPS, Job, Setup, jobs_of, serve


@settings(max_examples=75)
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


@settings(max_examples=30)
@given(
    short=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30)), min_size=20, max_size=70),
    prompts=st.integers(1, 3),
    rows=st.integers(2, 8),
    overlap=st.booleans(),
)
def test_decoding_continues_whatever_arrives(short, prompts, rows, overlap):
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
@settings(max_examples=20)
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
    scheduler = scheduler_of(Policies(8, 8, 16, composition=Weighed(StepCosts(), rows=rows)), 4)
    batch = scheduler.prepare()
    assert batch is not None
    scheduler.launched(batch)
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


class Queue:
    """`waiting` prompts, of which a step takes `most`, or parts of them, while a request decodes."""

    def __init__(self, waiting: int, most: int, *, whole: bool = True) -> None:
        self.waiting, self.most, self.whole = waiting, most, whole
        self.turns = Alternate()

    def prompts(self, budget: int | None = None, *, cut: bool = False) -> list[Chunk]:
        taken = min(self.most, self.waiting)
        self.waiting -= taken if self.whole else 0
        return [Chunk(row, 0, 1, last=self.whole) for row in range(taken)]

    def decode(self) -> Ints:
        return np.array([0])

    def steps(self, count: int) -> str:
        """P for a step of prompts, D for one that decodes."""
        kinds = ""
        for _ in range(count):
            chunks, rows = self.turns(StepParts(self.prompts, self.decode, self.waiting))
            assert bool(chunks) != bool(len(rows))
            kinds += "P" if chunks else "D"
        return kinds


TURN = "P" * MOST_IN_A_ROW + "D"


@pytest.mark.parametrize(
    ("queue", "steps"),
    [
        (Queue(10, 4), "PPPDD"),  # a burst is taken before others decode
        (Queue(10**6, 4), 3 * TURN),  # a queue without end lets others decode
        (Queue(3, 1, whole=False), "PDPDPD"),  # parts of long prompts take turns
    ],
)
def test_prompts_and_decoding_take_turns(queue: Queue, steps: str) -> None:
    assert queue.steps(len(steps)) == steps


def test_prompts_that_come_one_by_one_take_turns_with_decoding() -> None:
    queue = Queue(0, 4)
    kinds = ""
    for _ in range(3):
        queue.waiting += 1
        kinds += queue.steps(2)
    assert kinds == "PDPDPD"


def test_prompts_that_find_no_room_let_others_decode() -> None:
    queue = Queue(5, 0)
    assert queue.steps(3) == "DDD"
    assert queue.turns(StepParts(queue.prompts, lambda: NO_INTS, 5)) == ([], NO_INTS)


def budgets_of(how: Composition, wait: int, decoding: int) -> tuple[list[tuple[int | None, bool]], int]:
    """The budgets that `how` asks prompts for, and how many rows it decodes."""
    budgets: list[tuple[int | None, bool]] = []

    def prompts(budget: int | None = None, *, cut: bool = False) -> list[Chunk]:
        budgets.append((budget, cut))
        return [Chunk(0, 0, 1, last=True)] * min(wait, 1)

    rows = how(StepParts(prompts, lambda: np.arange(decoding), wait, decoding))[1]
    return budgets, len(rows)


def fill(rows: int) -> Weighed:
    return Weighed(StepCosts(), rows=rows)


@pytest.mark.parametrize(
    ("how", "waiting", "decoding", "budget", "rows"),
    [
        # Those that decode count as padded, and leave half of the rows.
        (fill(2048), 2, 0, (UNLIMITED, False), 0), (fill(8192), 2, 45, (8128, True), 45),
        (fill(2048), 2, 65, (1920, True), 65), (fill(2048), 1, 1900, (1024, True), 1900),
        (fill(1), 2, 3, (1, True), 3),  # a step of few rows still takes a token of a prompt along
        (TakeAlong(16, 1024), 2, 64, (1024, False), 64),  # many requests share steps with whole prompts
        (TakeAlong(16, 1024), 7, 8, (None, False), 0),  # few take turns
        (TakeAlong(16, 1024), 0, 8, (None, False), 8),
    ],
)  # fmt: skip
def test_rows_that_prompts_and_decoding_share(how, waiting, decoding, budget, rows):
    assert budgets_of(how, waiting, decoding) == ([budget], rows)


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


@pytest.mark.parametrize("overlap", [False, True])
def test_many_answers_of_a_client_take_turns_beside_one_of_another(overlap: bool) -> None:
    """Two of six decode in each step with one of another client, and all six before and after."""
    stream = Job(0, 0, 3, 12, 0, True, 4, None, client=2)
    policies = Policies(8, 8, 64, client_batch_size=2)
    jobs = [*[replace(FLOOD, arrives_after=0)] * 6, stream]
    steps = serve(Setup(400, 8, policies, prefix_cache=False, overlap=overlap), jobs).steps
    begin, *beside, end = (step for step, ids in enumerate(steps) if 6 in ids)
    assert [*beside, end] == list(range(begin + 1, begin + 12))
    assert all(len(steps[step]) == 3 for step in [*beside, end])
    times = Counter(id for step in beside for id in steps[step] if id != 6)
    assert max(times.values()) - min(times.values()) <= 1
    assert all(len(ids) == 6 for ids in [*steps[:3], steps[end + 2]])


def test_a_prompt_of_another_client_passes_long_ones_of_many() -> None:
    """Long prompts are cut beside a stream, which gets a token in each step."""
    stream = Job(0, 0, 3, 18, 0, True, 1, None, client=2)
    stranger = Job(0, 0, 6, 1, 0, True, 8, None, client=3)
    long = [replace(FLOOD, rest=40, arrives_after=6)] * 2
    jobs = [*[replace(FLOOD, rest=1)] * 6, stream, *long, stranger]
    policies = Policies(12, 8, 8, client_batch_size=2)
    steps = serve(Setup(400, 12, policies, prefix_cache=False, overlap=False), jobs).steps
    decoding = [step for step, ids in enumerate(steps) if 6 in ids]
    assert decoding == list(range(decoding[0], decoding[0] + 18))
    first = [next(step for step, ids in enumerate(steps) if id in ids) for id in (7, 9)]
    assert first[1] < first[0]


def test_clients_that_have_many_answers_each_decode_all() -> None:
    jobs = [replace(FLOOD, client=index % 2) for index in range(8)]
    policies = Policies(8, 8, 64, client_batch_size=2)
    steps = serve(Setup(400, 8, policies, prefix_cache=False, overlap=False), jobs).steps
    assert all(len(ids) == 8 for ids in steps)


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
