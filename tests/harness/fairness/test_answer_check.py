"""From replies to a verdict on each engine, and what an engine's stream holds word for word."""

from __future__ import annotations

import json

import pytest

from harness.engines.base import EngineVariant
from harness.engines.registry import get_engine_variant
from harness.fairness.answer_check import OUTPUT_TOKENS, Replies, check
from harness.fairness.asking import Reply, read_reply
from harness.fairness.reference import Reference, ReferenceAnswer
from harness.loadgen.load_plan import RawResponse
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
