"""Which of prompts and decoding a step computes where they take turns."""

from __future__ import annotations

import numpy as np

from roseinfer.batch import NO_INTS, Ints
from roseinfer.scheduler.policies import MOST_IN_A_ROW, Alternate, Chunk, StepParts


class Queue:
    """`waiting` prompts, of which a step takes `most`, or parts of them, beside a request that decodes."""

    def __init__(self, waiting: int, most: int, *, whole: bool = True) -> None:
        self.waiting, self.most, self.whole = waiting, most, whole
        self.turns = Alternate()

    def prompts(self) -> list[Chunk]:
        taken = min(self.most, self.waiting)
        self.waiting -= taken if self.whole else 0
        return [Chunk(row, 0, 1, last=self.whole) for row in range(taken)]

    def decode(self) -> Ints:
        return np.array([0])

    def steps(self, count: int) -> str:
        """P for a step of prompts, D for one that decodes."""
        made = ""
        for _ in range(count):
            chunks, rows = self.turns(StepParts(self.prompts, self.decode, self.waiting))
            assert bool(chunks) != bool(len(rows))
            made += "P" if chunks else "D"
        return made


def test_a_burst_of_whole_prompts_is_taken_before_others_decode() -> None:
    assert Queue(10, 4).steps(5) == "PPPDD"


def test_a_queue_without_end_lets_others_decode() -> None:
    turn = "P" * MOST_IN_A_ROW + "D"
    assert Queue(10**6, 4).steps(3 * len(turn)) == 3 * turn


def test_prompts_that_come_one_by_one_take_turns_with_decoding() -> None:
    queue = Queue(0, 4)
    made = ""
    for _ in range(3):
        queue.waiting += 1
        made += queue.steps(2)
    assert made == "PDPDPD"


def test_parts_of_long_prompts_take_turns_with_decoding() -> None:
    assert Queue(3, 1, whole=False).steps(6) == "PDPDPD"


def test_prompts_that_find_no_room_let_others_decode() -> None:
    queue = Queue(5, 0)
    assert queue.steps(3) == "DDD"
    assert queue.turns(StepParts(queue.prompts, lambda: NO_INTS, 5)) == ([], NO_INTS)
