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
    """Write `size` decode rows to `array` `[≥ 2 · most]`: running rows from index 0 on, lengths from index
    `most` on. Rows beyond the batch's are `padding_row` with length 0."""
    count = len(batch.decode_lengths)
    array[:count] = batch.decode_requests
    array[count:size] = padding_row
    array[most : most + count] = batch.decode_lengths
    array[most + count : most + size] = 0


def put_prompts(array: NDArray[np.int32], batch: Batch, size: int, room: int, padding_row: int) -> None:
    """Write `size` tokens of `room` prompts to `array` `[≥ prompt_numbers]`: token ids, positions and cache
    slots, then `prompt_arrays`. Padding tokens have slot -1, padding prompts have row `padding_row`."""
    count, prompts, ends = batch.decode_start, len(batch.segments), len(batch.prefill_requests)
    sources = (batch.tokens, 0), (batch.positions, 0), (batch.cache_slots, -1)
    for row, (source, padding) in zip(array[: 3 * size].reshape(3, size), sources, strict=True):
        row[:count] = source[:count]
        row[count:] = padding
    arrays = prompt_arrays(array, size, room)
    counts, contexts, requests = (
        np.array([(s.count, s.context, s.request) for s in batch.segments], np.int32).reshape(-1, 3).T
    )
    for spans, lengths in ((arrays.queries, counts), (arrays.keys, counts + contexts)):
        spans[0] = 0
        lengths.cumsum(out=spans[1 : prompts + 1])
        spans[prompts + 1 :] = spans[prompts]
    arrays.requests[:prompts] = requests
    arrays.requests[prompts:] = padding_row
    arrays.last[:ends] = batch.last_rows[:ends]
    arrays.last[ends:] = 0
    arrays.ended[:ends] = batch.prefill_requests
    arrays.ended[ends:] = padding_row


class PromptArrays(NamedTuple, Generic[A]):
    """The prompts of a step. Cumulative lengths (cu_seqlens) of their rows, `queries` `[room + 1]`, and of
    their keys, cached ones included, `keys` `[room + 1]`; their running rows `requests` `[room]`. Of the
    prompts that end in this step: their `last` rows, and their running rows `ended`, both `[room]`."""

    queries: A
    keys: A
    requests: A
    last: A
    ended: A


def prompt_arrays(array: A, size: int, room: int) -> PromptArrays[A]:
    """Views of what follows the three arrays of `size` tokens."""
    lengths = [room + 1, room + 1, room, room, room]
    ends = [3 * size + end for end in accumulate(lengths)]
    return PromptArrays(*(array[end - length : end] for length, end in zip(lengths, ends, strict=True)))


def prompt_numbers(size: int, room: int) -> int:
    """Numbers in all arrays together."""
    return 3 * size + 5 * room + 2
