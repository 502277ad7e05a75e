"""A scheduler and its loop with a model whose tokens depend on what the cache holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal
from zlib import crc32

import numpy as np
from hypothesis import strategies as st

from roseinfer.batch import Batch, Ints
from roseinfer.engine.drafts import DraftModel
from roseinfer.engine.loop import Loop
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.prefix import NoPrefixCache, PrefixCache
from roseinfer.request.params import FinishReason, SamplingParams
from roseinfer.scheduler.admission import Fifo, Pack
from roseinfer.scheduler.cost import StepCost, StepCosts
from roseinfer.scheduler.policies import (
    Alternate,
    ChunkedPrompts,
    Policies,
    TakeAlong,
    WholePrompts,
    decode_first,
    prefill_first,
)
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler
from roseinfer.scheduler.speculation import LONGEST, MOST_ROWS, Speculation
from roseinfer.scheduler.weighed import AIMS, Weighed

BLOCK, CONTEXT, VOCAB, EOS = 4, 64, 60, 7
LOOKAHEAD = 3


def next_token(tokens: np.ndarray) -> int:
    """Return the model's answer to these tokens."""
    return crc32(np.asarray(tokens, dtype=np.int64).tobytes()) % VOCAB


class Done(Pending):
    def __init__(self, runner: CacheModel, batch: Batch) -> None:
        self._runner, self._batch = runner, batch

    def tokens(self) -> Ints:
        return self._runner.compute(self._batch)


class CacheModel(Runner):
    """Keeps tokens where a model keeps keys and values, and computes a step only when it is waited for."""

    def __init__(self, num_blocks: int, running: Running, policies: Policies) -> None:
        self._cache = np.full((num_blocks, BLOCK), -1)
        self._last = np.full(len(running.requests), -1)
        self._running, self._policies = running, policies
        self._in_flight: list[tuple[Batch, Ints, dict[int, int]]] = []

    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        self._check(batch)
        assert (sampling.position == batch.positions[batch.last_rows] + 1).all()
        rows = np.concatenate(
            [*(np.full(s.count, s.request) for s in batch.segments), batch.decode_requests]
        ).astype(int)
        owners = dict(
            zip((batch.cache_slots // BLOCK).tolist(), self._running.ids[rows].tolist(), strict=True)
        )
        running = self._running
        references = Counter(
            block for row in running.order.tolist() for block in running.blocks_of(row).tolist()
        )
        assert all(references[block] == 1 for block in owners), "a block that is written is shared"
        for _, _, others in self._in_flight:
            for block in owners.keys() & others.keys():
                assert owners[block] == others[block], "a launched step still writes to that block"
        self._in_flight.append((batch, batch.block_table.copy(), owners))
        return Done(self, batch)

    def compute(self, batch: Batch) -> Ints:
        expected, table, _ = self._in_flight.pop(0)
        assert batch is expected, "steps are waited for in the order of their launch"
        self._cache[batch.copies[1]] = self._cache[batch.copies[0]]
        self._last[batch.settled[0]] = batch.settled[1]
        tokens = batch.tokens.copy()
        tokens[batch.decode_start :] = self._last[batch.decode_requests]
        announced = batch.tokens[batch.decode_start :]
        assert ((announced == -1) | (announced == tokens[batch.decode_start :])).all()
        self._cache.reshape(-1)[batch.cache_slots] = tokens
        position = batch.positions[batch.last_rows]
        sampled = np.array(
            [
                next_token(self._cache[table[row]].reshape(-1)[: last + 1])
                for row, last in zip(batch.requests, position, strict=True)
            ],
            dtype=np.int64,
        )
        self._last[batch.requests] = sampled
        return sampled

    def _check(self, batch: Batch) -> None:
        """Budgets are kept, and no place that is written is shared."""
        assert len(np.unique(batch.cache_slots)) == len(batch.cache_slots) == len(batch.tokens)
        if batch.verifying:
            assert batch.verifying == len(batch.segments) <= self._policies.max_batch_size
            assert len(batch.tokens) == len(batch.requests) <= MOST_ROWS
            return
        policies = self._policies
        counts = [segment.count for segment in batch.segments]
        along = policies.composition if isinstance(policies.composition, TakeAlong | Weighed) else None
        chunked = isinstance(policies.chunking, ChunkedPrompts)
        assert (len(counts) <= 1 and not chunked) or sum(counts) <= policies.prefill_max_tokens
        if isinstance(along, Weighed) and along.rows and len(batch.decode_lengths):
            whole, aim = self._running.longest()[0], along._aim
            is_part = aim.parts is not None and whole // aim.parts > along.rows  # of a long prompt
            assert is_part or sum(counts) <= along.rows
        elif isinstance(policies.chunking, ChunkedPrompts) and along is None:
            assert max(counts, default=0) <= policies.chunking.size
        assert len(counts) <= policies.prefill_max_batch_size
        assert len(batch.decode_lengths) <= policies.max_batch_size
        mixes = policies.composition is decode_first or along is not None
        assert mixes or not counts or not len(batch.decode_lengths)
        assert batch.decode_start == sum(counts)
        assert len(set(batch.requests.tolist())) == len(batch.requests) > 0 or not len(batch.decode_lengths)
        assert {segment.request for segment in batch.segments} <= set(batch.changed.tolist())


class DraftCache(CacheModel):
    """A draft model and its cache, which must have the tokens of each request that it answers. A third of its
    answers are wrong."""

    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        self._in_flight.append((batch, batch.block_table.copy(), {}))
        return Done(self, batch)

    def compute(self, batch: Batch) -> Ints:
        drafted, running = super().compute(batch), self._running
        positions = batch.positions[batch.last_rows]
        for row, position in zip(batch.requests.tolist(), positions.tolist(), strict=True):
            count = min(position + 1, int(running.length[row]))
            cached = self._cache[running.block_table[row]].reshape(-1)[:count]
            assert (cached == running.tokens[row, :count]).all(), "the cache has other tokens"
        drafted[positions % 3 == 0] += 1
        drafted %= VOCAB
        self._last[batch.requests] = -1 if batch.verifying else drafted  # several of a row: any may stay
        return drafted


@dataclass(frozen=True)
class Job:
    """A prompt is the beginning of one of few documents, and then its rest; times count steps."""

    document: int
    shared: int
    rest: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    arrives_after: int
    leaves_after: int | None
    client: int = 0

    def prompt(self, id: int) -> np.ndarray:
        rng = np.random.default_rng(self.document)
        shared = rng.integers(0, VOCAB, self.shared)
        return np.concatenate([shared, np.full(self.rest, id % VOCAB)]).astype(np.int32)

    def params(self) -> SamplingParams:
        return SamplingParams(
            self.max_tokens, min(self.min_tokens, self.max_tokens), ignore_eos=self.ignore_eos
        )

    def answer(self, id: int) -> list[int]:
        return self.answer_to(self.prompt(id))

    def answer_to(self, prompt: np.ndarray) -> list[int]:
        answer: list[int] = []
        while len(answer) < self.max_tokens:
            answer.append(next_token(np.array(prompt.tolist() + answer)))
            if answer[-1] == EOS and not self.ignore_eos and len(answer) >= max(self.min_tokens, 1):
                break
        return answer


def jobs_of(clients: int) -> st.SearchStrategy[Job]:
    """Jobs of so many clients."""
    return st.builds(
        Job,
        document=st.integers(0, 1),
        shared=st.sampled_from([0, 3, 4, 8, 9, 16]),
        rest=st.integers(0, 8),
        max_tokens=st.integers(1, 20),
        min_tokens=st.integers(0, 6),
        ignore_eos=st.booleans(),
        arrives_after=st.integers(0, 6),
        leaves_after=st.none() | st.integers(0, 12),
        client=st.integers(0, clients - 1),
    ).filter(lambda job: job.shared + job.rest > 0)


@dataclass(frozen=True)
class Setup:
    """An engine without a model."""

    num_blocks: int
    rows: int
    policies: Policies
    prefix_cache: bool
    overlap: bool
    speculates: Literal["", "ngram", "model"] = ""


def known(token: float) -> StepCosts:
    """Costs of steps in which a row takes `token` seconds."""
    costs = StepCosts()
    costs.know(StepCost(0, token, 0, 0, token, 0))
    return costs


POLICIES = st.builds(
    Policies,
    max_batch_size=st.integers(1, 8),
    prefill_max_batch_size=st.integers(1, 4),
    prefill_max_tokens=st.integers(1, 40),
    admission=st.sampled_from([Fifo(), Pack(LOOKAHEAD)]),
    chunking=st.just(WholePrompts()) | st.builds(ChunkedPrompts, st.integers(1, 12)),
    composition=st.one_of(
        st.sampled_from([decode_first, prefill_first]),
        st.builds(Alternate),
        st.builds(TakeAlong, st.integers(1, 6), st.integers(1, 60)),
        st.builds(
            lambda token, aim, **limits: Weighed(known(token), AIMS[aim], **limits),
            st.floats(0, 0.05),
            st.sampled_from(list(AIMS)),
            rows=st.none() | st.integers(1, 60),
            tpot=st.none() | st.floats(1e-3, 1),
            ttft=st.none() | st.floats(1e-6, 1),
        ),
    ),
    client_batch_size=st.none() | st.integers(1, 3),
)
SETUPS = st.builds(
    Setup, st.integers(11, 40), st.integers(1, 8), POLICIES, st.booleans(), st.booleans(),
    st.sampled_from(["", "ngram", "model"]),
)  # fmt: skip


def guess(tokens: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """Draft what the model answers, or a part of it, and sometimes what it does not."""
    chance, guesses = crc32(tokens.tobytes()), tokens.tolist()
    for _ in range(chance % (most + 1)):
        guesses.append(next_token(np.array(guesses)))
    if chance % 3 == 0 and len(guesses) > len(tokens):
        guesses[-1] = (guesses[-1] + 1) % VOCAB
    return np.array(guesses[len(tokens) :], np.int32), LONGEST


@dataclass
class Outcome:
    """The tokens and times of the requests."""

    answers: dict[int, list[int]] = field(default_factory=dict)
    ended: Counter[int] = field(default_factory=Counter)
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    admitted: list[int] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    steps: list[list[int]] = field(default_factory=list)
    preemptions: int = 0


def serve(setup: Setup, jobs: list[Job]) -> Outcome:
    """Run everything to the end; every step leaves the blocks consistent."""
    running, allocator = Running(setup.rows, CONTEXT, BLOCK), BlockAllocator(setup.num_blocks)
    cache = (PrefixCache if setup.prefix_cache else NoPrefixCache)(allocator, BLOCK)
    ticks = iter(range(1, 1 << 40))
    cache_of_drafts = DraftCache(setup.num_blocks, running, setup.policies)
    drafts = DraftModel(cache_of_drafts, setup.policies, clock=lambda: float(next(ticks)))
    speculation = Speculation(7, guess, drafts if setup.speculates == "model" else None)
    scheduler = Scheduler(
        running, allocator, cache, setup.policies, (EOS,), clock=lambda: float(next(ticks)),
        speculation=speculation if setup.speculates else None,
    )  # fmt: skip
    model = CacheModel(setup.num_blocks, running, setup.policies)
    loop = Loop(scheduler, running, model, overlap=setup.overlap, clock=lambda: float(next(ticks)))
    outcome = Outcome()
    requests = [
        Request(id, job.prompt(id), job.params(), 0.5, job.prompt(id), job.client)
        for id, job in enumerate(jobs)
    ]
    pending, step = list(enumerate(jobs)), 0
    while pending or scheduler.has_work:
        step += 1
        assert step < 4000, "no progress"
        while pending and pending[0][1].arrives_after <= step:
            scheduler.add(requests[pending.pop(0)[0]])
        for id, job in enumerate(jobs):
            gone = job.leaves_after is not None and step > job.leaves_after + job.arrives_after
            if gone and scheduler.discard(id):
                outcome.left.add(id)
        result = loop.step()
        if result is None:
            continue
        assert setup.speculates or len(set(result.ids.tolist())) == len(result.ids)
        outcome.steps.append(result.ids.tolist())
        for id, token in zip(result.ids.tolist(), result.tokens.tolist(), strict=True):
            outcome.answers.setdefault(id, []).append(token)
        for end in result.finished:
            outcome.ended[end.id] += 1
            outcome.reasons[end.id] = end.reason
            outcome.cached[end.id] = end.cached_tokens
        allocator.check()
        cache.check()
    assert allocator.num_free == setup.num_blocks and not running.full and not len(running)
    outcome.admitted = [r.id for r in sorted(requests, key=lambda r: r.admitted) if r.admitted]
    outcome.preemptions = scheduler.preemptions
    assert cache.cached_tokens >= sum(outcome.cached.values())
    return outcome
