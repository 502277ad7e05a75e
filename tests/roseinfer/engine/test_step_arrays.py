"""The arrays of a step, and their padding."""

from __future__ import annotations

import numpy as np

from roseinfer.batch import Batch, Segment
from roseinfer.engine.step_arrays import prompt_arrays, prompt_numbers, put_decode, put_prompts

SIZE, ROOM, MOST, PADDING_ROW = 8, 3, 6, 99
#: Two prompts of which the second does not end here, then two requests that decode.
BATCH = Batch(
    tokens=np.array([11, 12, 13, 14, 15, -1, -1]),
    positions=np.array([0, 1, 2, 20, 21, 30, 40]),
    cache_slots=np.array([64, 65, 66, 100, 101, 3, 5]),
    segments=(
        Segment(start=0, count=3, context=0, blocks=np.array([4]), request=7),
        Segment(start=3, count=2, context=20, blocks=np.array([5, 6]), request=8),
    ),
    decode_lengths=np.array([31, 41]),
    last_rows=np.array([2, 5, 6]),
    requests=np.array([7, 1, 0]),
    block_table=np.zeros((10, 4), dtype=np.int64),
    block_size=16,
)


def test_prompts_and_padding() -> None:
    array = np.full(prompt_numbers(SIZE, ROOM), -7, dtype=np.int32)
    put_prompts(array, BATCH, SIZE, ROOM, PADDING_ROW)
    arrays = prompt_arrays(array, SIZE, ROOM)
    assert arrays.tokens.tolist() == [11, 12, 13, 14, 15, 0, 0, 0]
    assert arrays.positions.tolist() == [0, 1, 2, 20, 21, 0, 0, 0]
    assert arrays.slots.tolist() == [64, 65, 66, 100, 101, -1, -1, -1]
    assert arrays.queries.tolist() == [0, 3, 5, 5]
    assert arrays.keys.tolist() == [0, 3, 25, 25]
    assert arrays.requests.tolist() == [7, 8, PADDING_ROW]
    assert arrays.last.tolist() == [2, 0, 0]
    assert arrays.ended.tolist() == [7, PADDING_ROW, PADDING_ROW]
    assert -7 not in array


def test_requests_that_decode_and_padding() -> None:
    array = np.full(2 * MOST, -7, dtype=np.int32)
    put_decode(array, BATCH, 4, MOST, PADDING_ROW)
    assert array[:MOST].tolist() == [1, 0, PADDING_ROW, PADDING_ROW, -7, -7]
    assert array[MOST:].tolist() == [31, 41, 0, 0, -7, -7]
