"""Builds the batch of a step from chunks of prompts and decode rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roseinfer.batch import UNKNOWN, Batch, Ints, Segment
from roseinfer.scheduler.policies import Chunk
from roseinfer.scheduler.running import Running


def assemble(
    running: Running,
    chunks: list[Chunk],
    decode: Ints,
    changed: Ints,
    copies: Ints,
    settled: Ints,
    *,
    verifies: bool = False,
) -> Batch:
    """Build the batch of one step from chunks and decode rows `[D]`; `changed`, `copies` and `settled` as in
    Batch. `verifies`: the chunks are drafts to verify."""
    if chunks:
        batch = _mixed(running, chunks, decode, verifies=verifies)
    else:
        batch = decode_batch(running, decode, running.length[decode])
    return replace(batch, changed=changed, copies=copies, settled=settled)


def decode_batch(running: Running, rows: Ints, lengths: Ints) -> Batch:
    """Build the batch of a step in which `rows` `[D]` decode, with `lengths` `[D]` tokens."""
    positions = lengths - 1
    return Batch(
        tokens=np.full(len(rows), UNKNOWN),  # the runner knows them
        positions=positions,
        cache_slots=_slots(running, rows, positions),
        segments=(),
        decode_lengths=lengths,
        last_rows=np.arange(len(rows)),
        requests=rows,
        block_table=running.block_table,
        block_size=running.block_size,
    )


def _mixed(running: Running, chunks: list[Chunk], decode: Ints, *, verifies: bool) -> Batch:
    counts = np.array([chunk.count for chunk in chunks])
    ends = counts.cumsum()
    decode_start = int(ends[-1])
    segments = tuple(
        Segment(int(end) - chunk.count, chunk.count, chunk.context, _context(running, chunk), chunk.row)
        for end, chunk in zip(ends, chunks, strict=True)
    )
    sampled_rows = np.arange(decode_start) if verifies else ends[[chunk.last for chunk in chunks]] - 1
    rows = np.concatenate([np.repeat([chunk.row for chunk in chunks], counts), decode])
    lengths = running.length[decode]
    positions = np.concatenate(
        [*(np.arange(chunk.context, chunk.context + chunk.count) for chunk in chunks), lengths - 1]
    )
    return Batch(
        tokens=running.tokens[rows, positions].astype(np.int64),
        positions=positions,
        cache_slots=_slots(running, rows, positions),
        segments=segments,
        decode_lengths=lengths,
        last_rows=np.concatenate([sampled_rows, np.arange(decode_start, len(rows))]),
        requests=np.concatenate([rows[sampled_rows], decode]),
        block_table=running.block_table,
        block_size=running.block_size,
        verifying=len(chunks) if verifies else 0,
    )


def _context(running: Running, chunk: Chunk) -> Ints:
    """The blocks that hold the tokens before the chunk."""
    return running.block_table[chunk.row, : -(-chunk.context // running.block_size)]


def _slots(running: Running, rows: Ints, positions: Ints) -> Ints:
    block = positions // running.block_size
    slots: Ints = (running.block_table[rows, block] - block) * running.block_size + positions
    return slots
