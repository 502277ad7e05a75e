"""A step's arrays on their way to the GPU, and its tokens back: without one, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.engine.staging import SLOTS, Inbox
from roseinfer.kernels.triton import host_memory

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
ROWS, WIDTH, WORDS = 5, 3, 7
examples = settings(max_examples=25)
#: Of each step: the row that changes and the number that it gets.
changes = st.lists(st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(1, 99))), min_size=1, max_size=9)


@examples
@given(changes, st.booleans())
def test_every_step_takes_its_own_arrays(steps: list[list[tuple[int, int]]], pinned: bool) -> None:
    box = Inbox(WORDS + 1 + ROWS * (1 + WIDTH), DEVICE, pinned=pinned and CUDA)
    table, taken = (
        torch.zeros(shape, dtype=torch.int32, device=DEVICE) for shape in ((ROWS, WIDTH), (WORDS,))
    )
    wanted = torch.zeros_like(table)
    box.take(taken, table)  # as capturing does
    box.reset()
    for number, step in enumerate(steps):
        array, lines = box.array(), dict(step)
        array[:WORDS] = range(number, number + WORDS)
        array[WORDS] = len(lines)
        array[WORDS + 1 : WORDS + 1 + len(lines)] = list(lines)
        for index, (row, value) in enumerate(lines.items()):
            start = WORDS + 1 + ROWS + index * WIDTH
            array[start : start + WIDTH] = wanted[row] = torch.arange(value, value + WIDTH)
        box.send(len(array))
        box.take(taken, table)
        assert taken.tolist() == list(range(number, number + WORDS))
        assert torch.equal(table, wanted)


@examples
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_every_step_gives_to_the_next_slot(counts: list[int]) -> None:
    target = torch.full((SLOTS, 9), -1, pin_memory=CUDA)
    ticket = host_memory.ticket(DEVICE)
    for number, count in enumerate(counts):
        tokens, slot = torch.arange(count, device=DEVICE) + number, target[number % SLOTS]
        before = slot.clone()
        host_memory.give(tokens, target, ticket)
        if CUDA:
            torch.cuda.synchronize()
        assert slot[:count].tolist() == tokens.tolist()
        assert torch.equal(slot[count:], before[count:])
