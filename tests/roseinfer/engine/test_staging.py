"""A step's arrays on their way to the GPU, and its tokens back: without one, in Triton's interpreter."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.engine.graphs import SLOTS
from roseinfer.engine.staging import Inbox, Lines
from roseinfer.kernels.triton import host_memory

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
ROWS, WIDTH, WORDS = 5, 3, 7
examples = settings(max_examples=10)
#: Of each step: the rows that change with the numbers that they get, and whether it takes them.
steps = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(1, 99))), st.booleans()), max_size=40
)


@examples
@given(steps, st.booleans())
def test_every_step_takes_its_own_arrays(steps, pinned):
    """Also all lines of the block table that changed since the last step that took some."""
    lines = Lines(ROWS, WIDTH)
    box = Inbox(WORDS + lines.size, DEVICE, pinned=pinned and CUDA)
    table, taken = (
        torch.zeros(shape, dtype=torch.int32, device=DEVICE) for shape in ((ROWS, WIDTH), (WORDS,))
    )
    expected = np.zeros((ROWS, WIDTH), dtype=np.int64)
    box.take(taken, table)  # as capturing does
    box.reset()
    for number, (changes, takes) in enumerate(steps):
        for row, value in changes:
            expected[row] = range(value, value + WIDTH)
        lines.change(np.array([row for row, _ in changes], dtype=np.int64))
        if takes:
            array = box.array()
            array[:WORDS] = range(number, number + WORDS)
            box.send(WORDS + lines.put(expected, array[WORDS:]))
            box.take(taken, table)
            assert taken.tolist() == list(range(number, number + WORDS))
            assert table.tolist() == expected.tolist()


def test_lines_that_are_not_read_take_no_more_space() -> None:
    lines = Lines(ROWS, WIDTH)
    size = len(pickle.dumps(lines))
    for _ in range(100):
        lines.change(np.arange(ROWS))
    assert len(pickle.dumps(lines)) == size


@examples
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_every_step_gives_to_the_next_slot(counts: list[int]) -> None:
    target = torch.full((SLOTS, 9), -1, pin_memory=CUDA)
    ticket = host_memory.ticket(DEVICE)
    for number, count in enumerate(counts):
        tokens, slot = torch.arange(count, device=DEVICE) + number, target[number % SLOTS]
        before = slot.clone()
        host_memory.write_slot(tokens, target, ticket)
        if CUDA:
            torch.cuda.synchronize()
        assert slot[:count].tolist() == tokens.tolist()
        assert torch.equal(slot[count:], before[count:])
