"""A batch as the fixed-size arrays that a captured graph reads, filled up with padding."""

from __future__ import annotations

from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.batch import Batch

A = TypeVar("A", Tensor, NDArray[np.int32])


def put_decode(array: NDArray[np.int32], batch: Batch, size: int, most: int, padding_row: int) -> None:
    """Write `size` decode rows to `array` `[≥ 2 · most]`. Rows beyond the batch's are `padding_row` with
    length 0."""
    count = len(batch.decode_lengths)
    rows, lengths = decode_arrays(array, size, most)
    rows[:count] = batch.decode_requests
    rows[count:] = padding_row
    lengths[:count] = batch.decode_lengths
    lengths[count:] = 0


def decode_arrays(array: A, size: int, most: int) -> tuple[A, A]:
    """Views of `size` decode rows: running rows from index 0 on, lengths from index `most` on."""
    return array[:size], array[most : most + size]


def put_prompts(array: NDArray[np.int32], batch: Batch, size: int, room: int, padding_row: int) -> None:
    """Write `size` tokens of `room` prompts to `array` `[≥ prompt_numbers]`. Padding tokens have slot -1,
    padding prompts have row `padding_row`."""
    count, prompts, ends = batch.decode_start, len(batch.segments), len(batch.prefill_requests)
    arrays = prompt_arrays(array, size, room)
    counts, contexts, requests = (
        np.array([(s.count, s.context, s.request) for s in batch.segments], np.int32).reshape(-1, 3).T
    )
    for spans, lengths in ((arrays.queries, counts), (arrays.keys, counts + contexts)):
        spans[0] = 0
        lengths.cumsum(out=spans[1 : prompts + 1])
        spans[prompts + 1 :] = spans[prompts]
    for padded, values, padding in (
        (arrays.tokens, batch.tokens[:count], 0),
        (arrays.positions, batch.positions[:count], 0),
        (arrays.slots, batch.cache_slots[:count], -1),
        (arrays.requests, requests, padding_row),
        (arrays.last, batch.last_rows[:ends], 0),
        (arrays.ended, batch.prefill_requests, padding_row),
    ):
        padded[: len(values)] = values
        padded[len(values) :] = padding


class PromptArrays(NamedTuple, Generic[A]):
    """The prompts of a step: of each token its id, position and cache slot, `[size]`. Cumulative lengths
    (cu_seqlens) of their rows, `queries` `[room + 1]`, and of their keys, cached ones included, `keys`
    `[room + 1]`; their running rows `requests` `[room]`. Of the prompts that end in this step: their `last`
    rows, and their running rows `ended`, both `[room]`."""

    tokens: A
    positions: A
    slots: A
    queries: A
    keys: A
    requests: A
    last: A
    ended: A


def prompt_arrays(array: A, size: int, room: int) -> PromptArrays[A]:
    """Views of `size` tokens of `room` prompts."""
    lengths = _lengths(size, room)
    ends = accumulate(lengths)
    return PromptArrays(*(array[end - length : end] for length, end in zip(lengths, ends, strict=True)))


def prompt_numbers(size: int, room: int) -> int:
    """Numbers in all arrays together."""
    return sum(_lengths(size, room))


def _lengths(size: int, room: int) -> tuple[int, ...]:
    return size, size, size, room + 1, room + 1, room, room, room
