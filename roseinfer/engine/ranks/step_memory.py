"""Passes steps from rank 0 to the other ranks, as arrays in shared memory."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np

from roseinfer.batch import Batch, Ints, Segment
from roseinfer.engine.graphs import MAX_PROMPTS, SLOTS

#: Arrays of a step. Its slot holds their lengths, then the arrays.
_ARRAYS = 11


@dataclass(frozen=True)
class StepSizes:
    """The most that a step may have: tokens, running requests, and blocks of one request."""

    tokens: int
    requests: int
    blocks: int

    @property
    def logits(self) -> int:
        """Rows of logits, in a step with prefill and decode rows."""
        return max(MAX_PROMPTS, self.requests) + self.requests

    @property
    def numbers(self) -> int:
        """int64 numbers of one step, with its whole block table and a copy of every block."""
        return _ARRAYS + 4 * self.tokens + self.requests * (3 * self.blocks + 12)


@dataclass(frozen=True)
class Step:
    """A batch, and the rows `prompt_rows` `[P]` whose logits are wanted besides those of `last_rows`."""

    batch: Batch
    prompt_rows: Ints


class StepMemory:
    """The steps in flight, in a ring of SLOTS slots. A rank reads a step before its first collective of that
    step, and rank 0 announces a step only after the step SLOTS before it has ended, so its slot is free.

    Args:
        descriptor: File descriptor of the shared memory, as `create` makes it.
        block_size: Tokens in a block.
    """

    def __init__(self, descriptor: int, sizes: StepSizes, block_size: int) -> None:
        numbers = np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), dtype=np.int64)
        self._slots, self._turn = numbers.reshape(SLOTS, sizes.numbers), -1
        self._table = np.zeros((sizes.requests, sizes.blocks), np.int64)
        self._block_size = block_size

    @staticmethod
    def create(sizes: StepSizes) -> int:
        """Create anonymous shared memory. Returns its file descriptor. Pages are allocated when written."""
        descriptor = os.memfd_create("roseinfer-step")
        os.ftruncate(descriptor, SLOTS * sizes.numbers * 8)
        return descriptor

    def _next(self) -> Ints:
        self._turn = (self._turn + 1) % SLOTS
        slot: Ints = self._slots[self._turn]
        return slot

    def write(self, batch: Batch, decoded: Ints, prompt_rows: Ints) -> None:
        """Write a step to the next slot. `decoded` `[D]`: the input tokens of its decode rows."""
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
        """The next step. Its arrays are copies, except for the block table, which belongs to this object and
        is valid until the next `read`."""
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
