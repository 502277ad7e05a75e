"""The interface between the scheduler and a runner: the tokens of one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: In `Batch.tokens`: a token that the device has sampled and the host has not seen yet.
UNKNOWN = -1
#: Empty `Batch.changed`, and `Batch.copies` and `Batch.settled`.
NO_INTS: Ints = np.empty(0, dtype=np.int64)
NO_COPIES: Ints = np.empty((2, 0), dtype=np.int64)


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one request in a batch: rows `start` to `start + count`, after `context`
    tokens whose keys and values are already cached in `blocks`. `request` is its running row."""

    start: int
    count: int
    context: int
    blocks: Ints
    request: int


@dataclass(frozen=True)
class Batch:
    """The tokens of one step: `T` rows, first the prefill segments, then `D` decode rows of one token each.

    A runner may launch the two parts separately. It keeps the last token that it sampled for every running
    row as the input of decode rows, whose `tokens` are UNKNOWN where the host has not read them yet.

    Args:
        tokens, positions: `[T]`.
        cache_slots: `[T]`, where each row's key and value go in the KV cache (block · block size + offset).
        segments: the prefill part; a segment that is not the last of its prompt yields no token.
        decode_lengths: `[D]`, tokens of the decoding requests, the row's own included.
        last_rows: `[R]`, the rows whose logits are wanted: last tokens of prompts, then all decode rows.
        requests: `[R]`, the running rows of `last_rows`.
        block_table: `[running rows, max blocks]`, a view of the scheduler's table, valid until the next batch
            is prepared.
        block_size: tokens in a block.
        changed: `[C]`, running rows whose row of `block_table` differs from the previous batch.
        copies: `[2, K]`, blocks to copy before anything is written: sources, then targets.
        settled: `[2, S]`, running rows that verified drafts in steps before, and their newest tokens, which
            are others than the runner sampled last.
        verifying: how many segments verify drafts: all of them, or none. Such a segment has the newest token
            of a request that decodes, then tokens drafted for it. All of its rows are in `last_rows`, so its
            request comes in `requests` as often.
    """

    tokens: Ints
    positions: Ints
    cache_slots: Ints
    segments: tuple[Segment, ...]
    decode_lengths: Ints
    last_rows: Ints
    requests: Ints
    block_table: Ints
    block_size: int
    changed: Ints = field(default_factory=lambda: NO_INTS)
    copies: Ints = field(default_factory=lambda: NO_COPIES)
    settled: Ints = field(default_factory=lambda: NO_COPIES)
    verifying: int = 0

    @property
    def decode_start(self) -> int:
        """The first decode row."""
        return len(self.tokens) - len(self.decode_lengths)

    @property
    def prefill_requests(self) -> Ints:
        """Running rows `[n]` whose prompt ends in this batch, or that verify, in the order of `last_rows`."""
        return self.requests[: len(self.requests) - len(self.decode_lengths)]

    @property
    def decode_requests(self) -> Ints:
        """`[D]`, running rows of the decode rows."""
        return self.requests[len(self.requests) - len(self.decode_lengths) :]

    @cached_property
    def decode_blocks(self) -> Ints:
        """`[D, max blocks]`, block tables of the decode rows, as wide as the longest request needs."""
        widest = -(-int(self.decode_lengths.max(initial=0)) // self.block_size)
        return self.block_table[self.decode_requests, :widest]
