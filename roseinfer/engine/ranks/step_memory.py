"""A step on its way from rank 0 to the others: its arrays, one after the other, in memory that all share."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np

from roseinfer.batch import Batch, Ints, Segment

#: Arrays of a step, each behind its length.
_ARRAYS = 9


@dataclass(frozen=True)
class Step:
    """A batch whose `tokens` are all known, and the rows `prompt_rows` `[P]` of it whose logits are wanted
    besides `batch.last_rows`."""

    batch: Batch
    prompt_rows: Ints


class StepMemory:
    """The step that is computed now. A rank reads it before it first waits for the others in that step, so
    that rank 0 finds it free for the next.

    Args:
        descriptor: Of shared memory, as `create` makes it.
        block_size: Tokens in a block.
    """

    def __init__(self, descriptor: int, block_size: int) -> None:
        self._numbers = np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), dtype=np.int64)
        self._block_size = block_size

    @staticmethod
    def create(tokens: int, requests: int, blocks: int) -> int:
        """Shared memory without a name: the descriptor. It takes no room before it is written to.

        Args:
            tokens: The most in a step.
            requests: The most in a step.
            blocks: The most of one request.
        """
        descriptor = os.memfd_create("roseinfer-step")
        numbers = _ARRAYS + 4 * tokens + requests * (2 * blocks + 10)
        os.ftruncate(descriptor, numbers * 8)
        return descriptor

    def write(self, batch: Batch, decoded: Ints, prompt_rows: Ints) -> None:
        """Hand a step over. `decoded` `[D]` are the input tokens of its one-token rows."""
        segments = np.array([(s.start, s.count, s.context, len(s.blocks)) for s in batch.segments], np.int64)
        arrays = (
            np.concatenate((batch.tokens[: batch.decode_start], decoded)),
            batch.positions,
            batch.cache_slots,
            segments.ravel(),
            np.concatenate([batch.decode_lengths[:0], *(s.blocks for s in batch.segments)]),
            batch.decode_lengths,
            np.concatenate((batch.decode_blocks.ravel(), batch.copies.ravel())),
            batch.last_rows,
            prompt_rows,
        )
        lengths = [len(array) for array in arrays]
        self._numbers[:_ARRAYS] = lengths
        np.concatenate(arrays, out=self._numbers[_ARRAYS : _ARRAYS + sum(lengths)])

    def read(self) -> Step:
        """The step that was written last, in a copy."""
        lengths = self._numbers[:_ARRAYS]
        numbers = self._numbers[_ARRAYS : _ARRAYS + int(lengths.sum())].copy()
        parts = np.split(numbers, np.cumsum(lengths)[:-1])
        tokens, positions, slots, numbers_of, blocks, decode_lengths, tables, last_rows, prompt_rows = parts
        segments, begin = [], 0
        for start, count, context, held in numbers_of.reshape(-1, 4).tolist():
            segments.append(Segment(start, count, context, blocks[begin : begin + held], 0))
            begin += held
        decoding = len(decode_lengths)
        widest = -(-int(decode_lengths.max(initial=0)) // self._block_size)
        table, copies = tables[: decoding * widest], tables[decoding * widest :]
        requests = np.concatenate((np.zeros(len(last_rows) - decoding, np.int64), np.arange(decoding)))
        batch = Batch(
            tokens, positions, slots, tuple(segments), decode_lengths, last_rows, requests,
            table.reshape(decoding, widest), self._block_size, copies=copies.reshape(2, -1),
        )  # fmt: skip
        return Step(batch, prompt_rows)
