"""A batch as the arrays that a captured graph reads: of a fixed size, the rest of it padding."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.batch import Batch

A = TypeVar("A", Tensor, NDArray[np.int32])


def put_decode(array: NDArray[np.int32], batch: Batch, size: int, most: int, padding_row: int) -> None:
    """Write the running rows of `size` requests that decode, and at `most` their lengths, to `array`
    `[≥ 2 · most]`. Those that `batch` has not are `padding_row` with length 0."""
    count = len(batch.decode_lengths)
    array[:count] = batch.decode_requests
    array[count:size] = padding_row
    array[most : most + count] = batch.decode_lengths
    array[most + count : most + size] = 0


def put_prompts(array: NDArray[np.int32], batch: Batch, size: int, room: int, padding_row: int) -> None:
    """Write `size` tokens of `room` prompts to `array` `[≥ 3 · size + 3 · room + 1]`: token ids, positions
    and cache slots, then `prompt_arrays`. Tokens that `batch` has not have slot -1, prompts `padding_row`."""
    count, prompts, ends = batch.decode_start, len(batch.segments), len(batch.prefill_requests)
    sources = (batch.tokens, 0), (batch.positions, 0), (batch.cache_slots, -1)
    for row, (source, padding) in zip(array[: 3 * size].reshape(3, size), sources, strict=True):
        row[:count] = source[:count]
        row[count:] = padding
    spans, last, rows = prompt_arrays(array, size, room)
    spans[0] = 0
    spans[1 : prompts + 1] = np.fromiter((s.start + s.count for s in batch.segments), np.int32, prompts)
    spans[prompts + 1 :] = count
    last[:ends] = batch.last_rows[:ends]
    last[ends:] = 0
    rows[:ends] = batch.prefill_requests
    rows[ends:] = padding_row


def prompt_arrays(array: A, size: int, room: int) -> tuple[A, A, A]:
    """Where prompts begin and end `[room + 1]`, their last rows and their running rows, both `[room]`, after
    the three arrays of `size` tokens."""
    first = 3 * size
    last = first + room + 1
    rows = last + room
    return array[first:last], array[last:rows], array[rows : rows + room]
