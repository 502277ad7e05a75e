"""Answers are judged as the rule says, whatever they are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fairness.answer_check import ExpectedAnswer, by_majority, by_reference, judge, tolerance
from harness.fairness.asking import Reply
from harness.fairness.reference import Reference, ReferenceAnswer

tokens = st.lists(st.integers(0, 5), min_size=1, max_size=8)


def reply(tokens: list[int] | None, text: str = "", error: str | None = None) -> Reply:
    return Reply(tokens=tokens, text=text, count=len(tokens or text), error=error)


def letters(ids: Sequence[int]) -> str:
    return "".join(chr(ord("a") + i) for i in ids)


@st.composite
def cases(draw: st.DrawFn) -> tuple[ExpectedAnswer, list[int]]:
    """A reference answer with random near ties, and an answer of the same length."""
    right = draw(tokens)
    near = [[(token, 0.0), (draw(st.integers(0, 5)), draw(st.floats(0, 2)))] for token in right]
    given = [draw(st.sampled_from([token, draw(st.integers(0, 5))])) for token in right]
    return ExpectedAnswer(right, near, tolerance=1.0), given


@given(cases())
def test_an_answer_is_right_up_to_the_first_token_that_is_not_as_good(
    case: tuple[ExpectedAnswer, list[int]],
) -> None:
    expected, given = case
    found = judge(reply(given), 3, len(given), expected, None)
    assert given[: found.same] == expected.tokens[: found.same]
    if found.outcome == "same":
        assert given == expected.tokens
        return
    right, other = expected.tokens[found.same], given[found.same]
    assert right != other
    as_good = dict(reversed(expected.candidates[found.same])).get(other, 9.0) <= 1.0
    assert found.outcome == ("near tie" if as_good else "different")


@given(cases())
def test_text_is_judged_like_the_tokens_it_is_made_of(case: tuple[ExpectedAnswer, list[int]]) -> None:
    expected, given = case
    by_tokens = judge(reply(given), 3, len(given), expected, None)
    by_text = judge(reply(None, letters(given)), 3, len(given), expected, letters)
    assert (by_text.same, by_text.outcome) == (by_tokens.same, by_tokens.outcome)


def test_half_characters_do_not_tell_answers_apart() -> None:
    """Two tokens hold half a character each: the tokenizer shows what the first lacks."""
    pieces = {(): "", (1,): "a", (1, 2): "a\ufffd", (1, 2, 3): "aé"}
    expected = ExpectedAnswer([1, 2, 3], [[(1, 0.0)], [(2, 0.0)], [(3, 0.0)]], 1.0)
    found = judge(reply(None, "aé"), 3, 3, expected, lambda ids: pieces[tuple(ids)])
    assert (found.same, found.outcome) == (3, "same")


def test_an_answer_that_failed_is_not_compared() -> None:
    expected = ExpectedAnswer([1], [[(1, 0.0)]], 1.0)
    found = judge(reply(None, error="wrong_length: 3 tokens, 16 asked for"), 3, 16, expected, None)
    assert (found.outcome, found.detail) == ("failed", "wrong_length: 3 tokens, 16 asked for")


@pytest.mark.parametrize("expected", [None, ExpectedAnswer([1], [[(1, 0.0)]], 1.0)])
def test_without_a_reference_or_a_tokenizer_nobody_knows(expected: ExpectedAnswer | None) -> None:
    assert judge(reply(None, "a"), 3, 1, expected, None).outcome == "unknown"


#: Of a model whose sequences end with 8 or 9: it says 1 2 and ends, at which 5 was as good.
ENDED = ExpectedAnswer(
    [1, 2], [[(1, 0.0)], [(2, 0.0), (9, 0.5)]], 1.0, [(8, 0.0), (5, 0.5)], frozenset({8, 9})
)


@pytest.mark.parametrize(
    ("given", "outcome", "position", "ended"),
    [
        ([1, 2], "same", None, False),
        ([1, 2, 8], "same", None, False),
        ([1, 2, 9], "same", None, False),
        ([1, 2, 8, 7], "same", None, False),  # what follows an end is not judged
        ([1], "near tie", 1, True),
        ([1, 9], "near tie", 1, True),
        ([], "different", 0, True),
        ([1, 2, 5, 6], "near tie", 2, False),
        ([1, 2, 6, 6], "different", 2, False),
        ([1, 6, 6, 6], "different", 1, False),
    ],
)
def test_where_answers_end_on_their_own_the_end_is_a_token(
    given: list[int], outcome: str, position: int | None, ended: bool
) -> None:
    found = judge(reply(given).model_copy(update={"exact": False}), 3, 4, ENDED, None)
    assert (found.outcome, found.ended) == (outcome, ended)
    assert position is None or found.same == position
    assert found.same <= found.got


@pytest.mark.parametrize(
    ("text", "outcome", "position", "ended"),
    [
        ("bc", "same", None, False),
        ("bcx", "same", None, False),  # in text a later end is not seen
        ("b", "near tie", 1, True),
        ("", "different", 0, True),
        ("bx", "different", 1, False),
    ],
)
def test_text_that_ends_too_early_is_different(
    text: str, outcome: str, position: int | None, ended: bool
) -> None:
    given = reply(None, text).model_copy(update={"exact": False})
    found = judge(given, 3, 4, ENDED, letters)
    assert (found.outcome, found.ended) == (outcome, ended)
    assert position is None or found.same == position


def test_an_end_is_not_judged_where_a_length_is_enforced() -> None:
    """Engines differ in whether they may choose it."""
    for answer in ([1, 2, 8, 7], [1, 2, 6, 6]):
        assert judge(reply(answer), 3, 4, ENDED, None).outcome == "same"
    assert judge(reply(None, "bxyz"), 3, 4, ENDED, letters).outcome == "near tie"


def test_the_tolerance_follows_what_the_dtype_does_and_has_a_floor() -> None:
    answer = ReferenceAnswer(tokens=[1], candidates=[[(1, 0.0), (2, 0.15)]])
    half = Reference(version="", noise=0.1, spread=3.0, answers=[answer])
    full = half.model_copy(update={"noise": 0.0})
    assert tolerance(half) == pytest.approx(0.2)
    assert tolerance(full) == pytest.approx(0.003)
    assert by_reference(half)[0].as_good(0) == [2]
    assert by_reference(full)[0].as_good(0) == []


@given(st.dictionaries(st.sampled_from("abcde"), tokens, min_size=1))
def test_a_majority_is_more_than_half_and_at_least_two(given: dict[str, list[int]]) -> None:
    [agreed] = by_majority({label: [reply(answer)] for label, answer in given.items()}, 1)
    agreeing = [answer for answer in given.values() if answer[: len(agreed.tokens)] == agreed.tokens]
    if agreed.tokens:
        assert len(agreeing) >= 2 and 2 * len(agreeing) > len(given)
    longer = [answer[: len(agreed.tokens) + 1] for answer in agreeing if len(answer) > len(agreed.tokens)]
    assert all(longer.count(answer) < 2 or 2 * longer.count(answer) <= len(given) for answer in longer)
