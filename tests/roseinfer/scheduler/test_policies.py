"""Contents of steps where prompts and decoding take turns, or share them."""

from __future__ import annotations

import numpy as np
import pytest

from roseinfer.batch import NO_INTS, Ints
from roseinfer.scheduler.policies import (
    MOST_IN_A_ROW,
    Alternate,
    Chunk,
    Composition,
    FillUp,
    StepParts,
    TakeAlong,
)


class Queue:
    """`waiting` prompts, of which a step takes `most`, or parts of them, while a request decodes."""

    def __init__(self, waiting: int, most: int, *, whole: bool = True) -> None:
        self.waiting, self.most, self.whole = waiting, most, whole
        self.turns = Alternate()

    def prompts(self, budget: int | None = None, *, cut: bool = False) -> list[Chunk]:
        taken = min(self.most, self.waiting)
        self.waiting -= taken if self.whole else 0
        return [Chunk(row, 0, 1, last=self.whole) for row in range(taken)]

    def decode(self) -> Ints:
        return np.array([0])

    def steps(self, count: int) -> str:
        """P for a step of prompts, D for one that decodes."""
        kinds = ""
        for _ in range(count):
            chunks, rows = self.turns(StepParts(self.prompts, self.decode, self.waiting))
            assert bool(chunks) != bool(len(rows))
            kinds += "P" if chunks else "D"
        return kinds


TURN = "P" * MOST_IN_A_ROW + "D"


@pytest.mark.parametrize(
    ("queue", "steps"),
    [
        (Queue(10, 4), "PPPDD"),  # a burst is taken before others decode
        (Queue(10**6, 4), 3 * TURN),  # a queue without end lets others decode
        (Queue(3, 1, whole=False), "PDPDPD"),  # parts of long prompts take turns
    ],
)
def test_prompts_and_decoding_take_turns(queue: Queue, steps: str) -> None:
    assert queue.steps(len(steps)) == steps


def test_prompts_that_come_one_by_one_take_turns_with_decoding() -> None:
    queue = Queue(0, 4)
    kinds = ""
    for _ in range(3):
        queue.waiting += 1
        kinds += queue.steps(2)
    assert kinds == "PDPDPD"


def test_prompts_that_find_no_room_let_others_decode() -> None:
    queue = Queue(5, 0)
    assert queue.steps(3) == "DDD"
    assert queue.turns(StepParts(queue.prompts, lambda: NO_INTS, 5)) == ([], NO_INTS)


def budgets_of(how: Composition, wait: int, decoding: int) -> tuple[list[tuple[int | None, bool]], int]:
    """The budgets that `how` asks prompts for, and how many rows it decodes."""
    budgets: list[tuple[int | None, bool]] = []

    def prompts(budget: int | None = None, *, cut: bool = False) -> list[Chunk]:
        budgets.append((budget, cut))
        return [Chunk(0, 0, 1, last=True)] * min(wait, 1)

    rows = how(StepParts(prompts, lambda: np.arange(decoding), wait, decoding))[1]
    return budgets, len(rows)


def test_prompts_fill_steps_up_to_a_number_of_rows() -> None:
    """The number depends on how many there are; those that decode count in 64s and leave half of the rows."""
    fill = FillUp(((47, 8192), (64, 768), (256, 2048)))
    assert budgets_of(fill, 2, 0) == ([(8192, True)], 0)
    assert budgets_of(fill, 2, 45) == ([(8128, True)], 45)
    assert budgets_of(fill, 2, 46) == ([(704, True)], 46)
    assert budgets_of(fill, 20, 44) == ([(704, True)], 44)
    assert budgets_of(fill, 2, 65) == ([(1920, True)], 65)
    assert budgets_of(fill, 1, 1900) == ([(1024, True)], 1900)


def test_a_step_of_few_rows_still_takes_a_token_of_a_prompt_along() -> None:
    assert budgets_of(FillUp(((8, 1),)), 2, 3) == ([(1, True)], 3)


def test_many_requests_share_steps_with_whole_prompts() -> None:
    assert budgets_of(TakeAlong(16, 1024), 2, 64) == ([(1024, False)], 64)


def test_few_requests_take_turns() -> None:
    assert budgets_of(TakeAlong(16, 1024), 7, 8) == ([(None, False)], 0)
    assert budgets_of(TakeAlong(16, 1024), 0, 8) == ([(None, False)], 8)
