"""Continuous batching: which tokens the next step computes."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from roseinfer.attention.base import Batch, Ints, Segment
from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.params import Finished, FinishReason
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running


@dataclass(frozen=True)
class Limits:
    """What one step may admit."""

    prefill_max_batch_size: int
    prefill_max_tokens: int


@dataclass(frozen=True)
class StepResult:
    """The tokens of a step: request ids and tokens `[R]`, and the requests that ended with it."""

    ids: Ints
    tokens: Ints
    finished: tuple[Finished, ...]


class Scheduler:
    """Requests wait in order of arrival, run together, and leave when done.

    Every step computes one token of each running request and the whole prompts of those admitted in it.
    A request needs blocks only for the tokens it has; when none is left, the request that was admitted
    last goes back to the head of the queue and is computed again later.
    """

    def __init__(
        self, running: Running, allocator: BlockAllocator, limits: Limits, eos: tuple[int, ...]
    ) -> None:
        self._waiting: deque[Request] = deque()
        self._running = running
        self._allocator = allocator
        self._limits = limits
        self._eos = np.array(eos, dtype=np.int64)
        self.preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting) or len(self._running) > 0

    def add(self, request: Request) -> None:
        """Queue a request. It must fit the cache alone: see `capacity_tokens`."""
        self._waiting.append(request)

    @property
    def capacity_tokens(self) -> int:
        """The longest request, prompt and answer, that can ever be served."""
        return self._allocator.num_blocks * self._running.block_size

    def discard(self, request_id: int) -> bool:
        """Forget a request whose client went away, at whatever stage. False if it is not known."""
        row = self._running.row_of(request_id)
        if row is not None:
            _, blocks = self._running.remove(row)
            self._allocator.release(blocks)
            return True
        for request in self._waiting:
            if request.id == request_id:
                self._waiting.remove(request)
                return True
        return False

    def prepare(self) -> Batch | None:
        """The next step's batch; None when there is nothing to do."""
        if not self.has_work:
            return None
        decode = self._grow()
        prefill = self._admit()
        return self._batch(prefill, decode)

    def process(self, batch: Batch, tokens: Ints) -> StepResult:
        """Take in the step's next tokens `[R]` and end the requests that are done."""
        running, rows = self._running, batch.requests
        now = time.monotonic()
        for row in rows[: len(batch.segments)]:
            request = running.request(row)
            request.first_token = request.first_token or now
        length = running.length[rows]
        running.tokens[rows, length] = tokens
        running.computed[rows] = length
        running.length[rows] = length = length + 1
        ids = running.ids[rows]
        stopped = (length >= running.first_stop[rows]) & np.isin(tokens, self._eos)
        ended = stopped | (length >= running.last_stop[rows])
        finished = tuple(
            self._finish(row, FinishReason.STOP if stop else FinishReason.LENGTH, now)
            for row, stop in zip(rows[ended], stopped[ended], strict=True)
        )
        return StepResult(ids, tokens, finished)

    def _finish(self, row: int, reason: FinishReason, now: float) -> Finished:
        request, blocks = self._running.remove(row)
        self._allocator.release(blocks)
        return Finished(
            id=request.id,
            reason=reason,
            queue_wait=request.admitted - request.submitted,
            prefill=request.first_token - request.admitted,
            generation=now - request.first_token,
        )

    def _grow(self) -> Ints:
        """Rows that decode, each with a block for its next token; preempts where blocks run out."""
        running = self._running
        while True:
            rows = running.order
            short = rows[running.blocks[rows] * running.block_size < running.length[rows]]
            if len(short) <= self._allocator.num_free:
                break
            self._preempt(int(rows[-1]))
        running.block_table[short, running.blocks[short]] = self._allocator.take(len(short))
        running.blocks[short] += 1
        return rows

    def _preempt(self, row: int) -> None:
        tokens = self._running.known_tokens(row)
        request, blocks = self._running.remove(row)
        self._allocator.release(blocks)
        self._waiting.appendleft(replace(request, tokens=tokens))
        self.preemptions += 1

    def _admit(self) -> list[int]:
        """Move requests from the queue to the batch while rows, blocks and the step's budget last."""
        running, limits = self._running, self._limits
        admitted: list[int] = []
        budget = limits.prefill_max_tokens
        now = time.monotonic()
        while self._waiting and not running.full and len(admitted) < limits.prefill_max_batch_size:
            request = self._waiting[0]
            known = len(request.tokens)
            blocks = -(-known // running.block_size)
            # One block more than needed now, so that what is admitted is not preempted at once.
            room = self._allocator.num_free - (len(running) > 0)
            if blocks > room or (admitted and known > budget):
                break
            self._waiting.popleft()
            budget -= known
            request.admitted = request.admitted or now
            admitted.append(running.add(request, self._allocator.take(blocks)))
        return admitted

    def _batch(self, prefill: list[int], decode: Ints) -> Batch:
        running, size = self._running, self._running.block_size
        segments, tokens, positions, slots = [], [], [], []
        start = 0
        for row in prefill:
            count = int(running.length[row])
            position = np.arange(count)
            blocks = running.held_blocks(row)
            segments.append(Segment(start, count, 0, blocks[:0]))
            tokens.append(running.tokens[row, :count])
            positions.append(position)
            slots.append(blocks[position // size] * size + position % size)
            start += count
        position = running.length[decode] - 1
        longest = int(running.blocks[decode].max(initial=0))
        tokens.append(running.tokens[decode, position])
        positions.append(position)
        slots.append(running.block_table[decode, position // size] * size + position % size)
        ends = np.array([segment.start + segment.count - 1 for segment in segments], dtype=np.int64)
        return Batch(
            tokens=np.concatenate(tokens).astype(np.int64),
            positions=np.concatenate(positions),
            cache_slots=np.concatenate(slots),
            segments=tuple(segments),
            decode_blocks=running.block_table[decode, :longest],
            decode_lengths=running.length[decode],
            last_rows=np.concatenate([ends, start + np.arange(len(decode))]),
            requests=np.concatenate([np.array(prefill, dtype=np.int64), decode]),
        )
