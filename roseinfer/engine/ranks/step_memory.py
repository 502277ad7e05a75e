"""A step on its way from rank 0 to the others: its arrays, one after the other, in memory that all share."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np

from roseinfer.batch import Batch, Ints, Segment
from roseinfer.engine.graphs import MAX_PROMPTS, SLOTS

#: Arrays of a step, each behind its length.
_ARRAYS = 11


@dataclass(frozen=True)
class StepSizes:
    """The most that a step may have: tokens and requests; running rows, and blocks of each."""

    tokens: int
    requests: int
    blocks: int

    @property
    def logits(self) -> int:
        """Rows of them, in a step of prompts and of requests that decode."""
        return max(MAX_PROMPTS, self.requests) + self.requests

    @property
    def numbers(self) -> int:
        """Of one step, its table whole and as many blocks copied as it has."""
        return _ARRAYS + 4 * self.tokens + self.requests * (3 * self.blocks + 12)


@dataclass(frozen=True)
class Step:
    """A batch, and the rows `prompt_rows` `[P]` of it whose logits are wanted besides `batch.last_rows`."""

    batch: Batch
    prompt_rows: Ints


class StepMemory:
    """The steps in flight, in SLOTS slots. A rank reads a step before it first waits for the others
    in it, and rank 0 announces none before the one SLOTS before it has ended: it finds the slot free.

    Args:
        descriptor: Of shared memory, as `create` makes it.
        block_size: Tokens in a block.
    """

    def __init__(self, descriptor: int, sizes: StepSizes, block_size: int) -> None:
        numbers = np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), dtype=np.int64)
        self._slots, self._turn = numbers.reshape(SLOTS, sizes.numbers), -1
        self._table = np.zeros((sizes.requests, sizes.blocks), np.int64)
        self._block_size = block_size

    @staticmethod
    def create(sizes: StepSizes) -> int:
        """Shared memory without a name: the descriptor. It takes no room before it is written to."""
        descriptor = os.memfd_create("roseinfer-step")
        os.ftruncate(descriptor, SLOTS * sizes.numbers * 8)
        return descriptor

    def _next(self) -> Ints:
        self._turn = (self._turn + 1) % SLOTS
        slot: Ints = self._slots[self._turn]
        return slot

    def write(self, batch: Batch, decoded: Ints, prompt_rows: Ints) -> None:
        """Hand a step over. `decoded` `[D]` are the input tokens of its one-token rows."""
        segments = np.array([(s.start, s.count, s.context, s.request) for s in batch.segments], np.int64)
        arrays = (
            np.concatenate((batch.tokens[: batch.decode_start], decoded)),
            batch.positions,
            batch.cache_slots,
            segments.ravel(),
            batch.decode_lengths,
            batch.last_rows,
            batch.requests,
            prompt_rows,
            batch.changed,
            batch.block_table[batch.changed].ravel(),
            batch.copies.ravel(),
        )
        lengths = [len(array) for array in arrays]
        slot = self._next()
        slot[:_ARRAYS] = lengths
        np.concatenate(arrays, out=slot[_ARRAYS : _ARRAYS + sum(lengths)])

    def read(self) -> Step:
        """The next step, in a copy, but for the block table, which is this object's and holds what the step
        needs until the next is read."""
        slot = self._next()
        lengths = slot[:_ARRAYS]
        numbers = slot[_ARRAYS : _ARRAYS + int(lengths.sum())].copy()
        (tokens, positions, slots, segments, decode_lengths, last_rows, requests, prompt_rows, changed, lines,
         copies) = np.split(numbers, np.cumsum(lengths)[:-1])  # fmt: skip
        self._table[changed] = lines.reshape(len(changed), self._table.shape[1])
        batch = Batch(
            tokens, positions, slots, tuple(self._segments(segments)), decode_lengths, last_rows, requests,
            self._table, self._block_size, changed, copies.reshape(2, -1),
        )  # fmt: skip
        return Step(batch, prompt_rows)

    def _segments(self, numbers: Ints) -> list[Segment]:
        return [
            Segment(start, count, context, self._table[request, : -(-context // self._block_size)], request)
            for start, count, context, request in numbers.reshape(-1, 4).tolist()
        ]
