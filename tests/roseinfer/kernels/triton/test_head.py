"""The LM head and the choice of the likeliest token."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from roseinfer.kernels.triton import argmax, head
from tests.roseinfer.kernels.triton.conftest import DEVICE, close, draw, examples, seeds


@examples
@given(seeds, st.integers(1, head.MAX_ROWS), st.integers(1, 150))
def test_head_and_choice(seed: int, rows: int, vocab: int) -> None:
    x, weight = draw(seed, rows, 96), draw(seed + 1, vocab, 96)
    logits, best, token = head.head(x, weight)
    close(logits, F.linear(x, weight))
    last, out = torch.zeros(2, rows + 1, dtype=torch.int64, device=DEVICE)
    running = torch.arange(1, rows + 1, dtype=torch.int32, device=DEVICE)
    argmax.choose(best, token, running, last, out[:rows])
    assert out[:rows].tolist() == last[1:].tolist() == logits.argmax(-1).tolist()
    assert last[0] == 0


@examples
@given(st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4))
def test_argmax_takes_the_first_of_equals(values: list[list[int]]) -> None:
    logits = torch.tensor(values, dtype=torch.float32, device=DEVICE)
    rows = torch.arange(len(values), dtype=torch.int32, device=DEVICE)
    last, out = torch.zeros(2, len(values), dtype=torch.int64, device=DEVICE)
    argmax.argmax(logits, rows, last, out)
    assert out.tolist() == last.tolist() == [row.index(max(row)) for row in values]


def test_argmax_of_what_is_no_number() -> None:
    logits = draw(0, 3, 5003)
    logits[0], logits[1, 4000:] = math.nan, math.nan
    rows = torch.arange(3, dtype=torch.int32, device=DEVICE)
    last, out = torch.zeros(2, 3, dtype=torch.int64, device=DEVICE)
    argmax.argmax(logits, rows, last, out)
    assert out.tolist() == last.tolist() == [0, 4000, logits[2].argmax().item()]


def test_argmax_over_several_parts() -> None:
    logits = draw(0, 2, 5003)
    last, out = torch.zeros(2, 2, dtype=torch.int64, device=DEVICE)
    argmax.argmax(logits, torch.tensor([1, 0], dtype=torch.int32, device=DEVICE), last, out)
    assert out.tolist() == logits.argmax(-1).tolist() == last.flip(0).tolist()
