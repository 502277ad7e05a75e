"""Answers of all engines to the same prompts, judged by a reference or by the majority."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.base import EngineVariant
from harness.engines.prompts import text_prompts
from harness.engines.registry import get_engine_variant
from harness.fairness.answer_check import (
    LENGTHS,
    OUTPUT_TOKENS,
    ExpectedAnswer,
    Replies,
    by_majority,
    by_reference,
    check,
    check_prompts,
    judge,
    tolerance,
)
from harness.fairness.asking import Reply, read_reply
from harness.fairness.reference import Reference, ReferenceAnswer
from harness.loadgen.load_plan import RawResponse
from harness.models.model_folder import resolve
from harness.schema.facts import Fact
from harness.schema.fairness import AnswerChecks
from harness.schema.setting_types import EngineRef

RIGHT = [list(range(10 * i, 10 * i + OUTPUT_TOKENS)) for i in range(3)]
WRONG = [[7, *answer[1:]] for answer in RIGHT]
NEAR = [[*answer[:3], 999, *answer[4:]] for answer in RIGHT]
ENGINES = ("roseinfer", "vllm", "transformers")


def replies(answers: list[list[int]], error: str | None = None) -> list[Reply]:
    return [Reply(tokens=answer, text="", count=len(answer), error=error) for answer in answers]


def reference() -> Reference:
    answers = [
        ReferenceAnswer(tokens=tokens, candidates=[[(token, 0.0), (999, 0.05)] for token in tokens])
        for tokens in RIGHT
    ]
    return Reference(version="transformers 5", noise=0.03, spread=0.3, answers=answers)


def verdicts(
    given: dict[str, list[list[Reply]]], reference: Reference | str, engines: tuple[str, ...] = ENGINES
) -> AnswerChecks:
    engine_variants: list[EngineVariant] = [
        get_engine_variant(EngineRef.model_validate(name)) for name in engines
    ]
    by_label = {
        engine_variant.label: given[engine_variant.ref.name]
        for engine_variant in engine_variants
        if engine_variant.ref.name in given
    }
    asked = Replies(prompts=[[1] * 4, [2] * 5, [3] * 6], by_engine=by_label, reference=reference)
    return check(asked, engine_variants, None)


def unknown(count: int, answers: int, **detail: str) -> Fact:
    return Fact(kind="unchecked_answers", values={"unknown": count, "answers": answers, **detail})


def test_an_engine_is_wrong_when_a_single_answer_is() -> None:
    found = verdicts(
        {
            "roseinfer": [replies(RIGHT), replies(NEAR)],
            "vllm": [replies(RIGHT), replies([*RIGHT[:2], WRONG[2]])],
            "transformers": [replies(RIGHT, error="no_tokens: the stream carries no token")],
        },
        reference(),
    )
    rose, vllm, transformers = found.checks
    assert (rose.verdict, rose.reason) == ("same", None)
    assert [answer.outcome for answer in rose.answers] == ["same"] * 3 + ["near tie"] * 3
    assert vllm.verdict == "wrong"
    assert vllm.reason.kind == "wrong_answers"
    assert (vllm.reason.values["wrong"], vllm.reason.values["answers"]) == (1, 6)
    assert vllm.reason.values["prompt_tokens"] == 6
    failed = {"failed": 3, "answers": 3, "detail": "no_tokens: the stream carries no token"}
    assert transformers.verdict == "wrong"
    assert transformers.reason == Fact(kind="failed_answers", values=failed)
    assert found.wrong.keys() == {"vLLM", "transformers"}
    assert found.reference == "transformers 5, float32" and found.tolerance == pytest.approx(0.06)


def test_without_a_reference_most_engines_decide_and_near_ties_are_forgiven() -> None:
    odd = [[5, *answer[1:]] for answer in RIGHT]
    given = {"roseinfer": [replies(NEAR)], "vllm": [replies(RIGHT)], "transformers": [replies(odd)]}
    found = verdicts(given, "transformers is not installed")
    assert [check.verdict for check in found.checks] == ["same", "same", "wrong"]
    assert found.reference == "the majority of 3 engines" and found.tolerance is None
    assert "transformers is not installed" in found.rule


def test_two_engines_without_a_reference_judge_nothing_but_failures() -> None:
    given = {"roseinfer": [replies(RIGHT)], "vllm": [replies(WRONG, error="wrong_length: 3 tokens")]}
    found = verdicts(given, "why not", ("roseinfer", "vllm"))
    assert [check.verdict for check in found.checks] == ["unknown", "wrong"]
    assert found.checks[0].reason == unknown(3, 3)
    assert found.reference is None and "fewer than three" in found.rule


def test_an_engine_that_had_too_much_to_do_is_not_wrong() -> None:
    busy = replies(RIGHT, error="http_429: Too Many Requests")
    found = verdicts({"vllm": [replies(RIGHT), busy], "roseinfer": [busy, busy]}, reference())
    rose, vllm, _ = found.checks
    assert (vllm.verdict, rose.verdict) == ("same", "unknown") and not found.wrong
    assert rose.reason == unknown(6, 6, detail="http_429: Too Many Requests")


def test_an_engine_that_was_not_asked_is_unknown() -> None:
    assert verdicts({"vllm": [replies(RIGHT)]}, reference()).checks[0].reason == unknown(0, 0)


def test_a_reply_is_its_tokens_and_text() -> None:
    events = [
        {"choices": [{"text": "a", "token_ids": [1]}]},
        {"choices": [{"text": "", "token_ids": [2, 3], "finish_reason": "length"}]},
        {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 1}},
    ]
    body = (
        b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    raw = RawResponse(0, 0.0, 0.0, 1.0, [(0.5, head + body)])
    assert read_reply(raw, 3) == Reply(tokens=[1, 2, 3], text="a", count=3, error=None)
    failed = read_reply(raw, 4)
    assert failed.error == "wrong_length: 3 tokens, 4 asked for" and failed.tokens is None


def test_an_answer_may_end_before_its_first_token_where_it_ends_on_its_own() -> None:
    event = {"choices": [{"text": "", "finish_reason": "stop"}]}
    body = b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    raw = RawResponse(0, 0.0, 0.0, 1.0, [(0.5, head + body)])
    assert read_reply(raw, None) == Reply(tokens=[], text="", count=0, error=None, exact=False)
    assert str(read_reply(raw, 3).error).startswith("no_tokens")


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
def test_an_answer_is_right_up_to_the_first_token_that_is_not_as_good(case):
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
def test_where_answers_end_on_their_own_the_end_is_a_token(given, outcome, position, ended):
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
def test_text_that_ends_too_early_is_different(text, outcome, position, ended):
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


def test_engines_that_take_text_are_asked_the_same() -> None:
    model = resolve("random:gpt2-tiny").path
    prompts = check_prompts(model, 50_257, 1024)
    assert [len(prompt) for prompt in prompts] == list(LENGTHS)
    assert prompts == check_prompts(model, 50_257, 1024)
    text = text_prompts(model)
    assert [text.tokens(prompt) for prompt in prompts] == prompts


def test_a_short_context_gets_short_prompts_and_a_model_without_tokenizer_any(tmp_path: Path) -> None:
    prompts = check_prompts(tmp_path, 10, 64)
    assert [len(prompt) for prompt in prompts] == [4, 16, 33]
    assert all(len(prompt) + OUTPUT_TOKENS <= 64 for prompt in prompts)
    assert {token for prompt in prompts for token in prompt} <= set(range(10))
    assert check_prompts(tmp_path, 10, 16) == []
