"""The items of the accuracy task, and what right and wrong ones say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from harness.fairness.task import EACH, FAMILIES, Item, is_right, judge_task, make_items, mcnemar
from harness.metrics.intervals import wilson
from harness.schema.fairness import TaskReply

ITEMS = make_items()


def test_items_are_the_same_each_time_and_as_many_of_each_kind():
    assert make_items() == ITEMS
    assert Counter(item.family for item in ITEMS) == dict.fromkeys(FAMILIES, EACH)
    assert len({item.prompt for item in ITEMS}) == len(ITEMS)


def test_answers_follow_from_the_question():
    """Worked out again from the text of the prompt alone."""
    for item in ITEMS:
        question = item.prompt.rpartition("\n")[2]
        if item.family in ("addition", "subtraction"):
            assert eval(question.removesuffix("=")) == int(item.answer)
        elif item.family == "sequence":
            numbers = [*map(int, question.split()), int(item.answer)]
            assert len({*np.diff(numbers)}) == 1
        elif item.family in ("copy", "last word"):
            words = item.prompt.splitlines()[-2].partition(":")[2].split()
            assert item.answer.split() == (words if item.family == "copy" else words[-1:])


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("12", True),
        (" 12\n3 + 4 = 7", True),
        (" 12 apples", False),
        ("\n12", False),
        ("112", False),
        ("", False),
    ],
)
def test_the_first_line_is_the_answer(answer: str, right: bool):
    assert is_right(Item("addition", "5 + 7 =", "12"), answer) is right


def test_wilsons_interval_is_that_of_the_paper():
    assert wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I


@given(st.integers(0, 240))
def test_wilsons_interval_holds_the_share(right: int):
    low, high = wilson(right, 240)
    assert 0 <= low <= right / 240 <= high <= 1


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9])
def test_wilsons_interval_covers(share: float):
    inside = [k for k in range(241) if wilson(k, 240)[0] <= share <= wilson(k, 240)[1]]
    assert 0.93 < binom.pmf(inside, 240, share).sum() < 0.97


def _reply(right: int) -> TaskReply:
    return TaskReply(right=[place < right for place in range(len(ITEMS))])


def test_an_engine_that_is_plainly_worse_is_named():
    scores = judge_task(ITEMS, {"a": _reply(120), "b": _reply(119), "c": _reply(80)})
    assert [score.label for score in scores.scores if score.is_invalid] == ["c"]
    below = scores.scores[2].below
    assert below is not None and below.values["other"] == "a"
    assert (below.values["right"], below.values["items"], below.values["other_right"]) == (80, 240, 120)
    assert [score.share for score in scores.scores] == [0.5, 119 / 240, 1 / 3]
    assert sum(scores.scores[0].by_family.values()) == 120


def test_an_engine_that_failed_to_answer_is_said_to_have_failed():
    lost = _reply(40).model_copy(update={"failed": 200})
    below = judge_task(ITEMS, {"a": _reply(120), "b": lost}).scores[1].below
    assert below is not None and (below.values["failed"], below.values["other_failed"]) == (200, 0)


@pytest.mark.parametrize(("fewer", "worse"), [(8, False), (11, False), (12, True)])
def test_a_small_difference_that_is_no_chance_is_said_and_not_worse(fewer, worse):
    scores = judge_task(ITEMS, {"a": _reply(111), "b": _reply(111 - fewer)})
    first, second = scores.scores
    assert first.below is None and second.below is not None
    assert second.below.kind == ("inaccurate" if worse else "less_accurate")
    assert second.is_invalid is worse and second.below.values["right"] == 111 - fewer


def test_half_precision_is_not_worse():
    """A few items each way, as near ties give, are no difference."""
    rng = np.random.default_rng(3)
    base = rng.random(240) < 0.5
    flipped = base ^ (rng.random(240) < 0.03)
    given = {name: TaskReply(right=right.tolist()) for name, right in (("a", base), ("b", flipped))}
    assert all(score.below is None for score in judge_task(ITEMS, given).scores)


def test_equal_engines_are_told_apart_in_at_most_one_run_of_twenty():
    """Five engines whose items are right by chance: the error rate holds for all pairs together.

    An error rate of 5 % passes in 99.5 % of such tests, one of 10 % in 19 %.
    """
    rng = np.random.default_rng(1)
    false = 0
    for _ in range(300):
        given = {name: TaskReply(right=(rng.random(240) < 0.6).tolist()) for name in "abcde"}
        false += any(score.below for score in judge_task(ITEMS, given).scores)
    assert false <= 25


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_is_symmetric_and_a_probability(pairs):
    a, b = zip(*pairs, strict=True)
    assert 0 < mcnemar(a, b) <= 1
    assert mcnemar(a, b) == pytest.approx(mcnemar(b, a))
