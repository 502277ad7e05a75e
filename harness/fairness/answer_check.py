"""The answer check of a run: every engine answers the same few prompts, which a reference judges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from harness.engines.base import Encoder, EngineVariant
from harness.engines.prompts import text_prompts
from harness.errors import EngineError
from harness.fairness.asking import Reply, ask_all
from harness.fairness.judge import NOISE_FACTOR, SPREAD_SHARE, by_majority, by_reference, judge, tolerance
from harness.fairness.reference import Reference
from harness.loadgen.load_plan import Target, WireRequest
from harness.schema.base import Strict
from harness.schema.facts import Fact, Value
from harness.schema.fairness import Answer, AnswerCheck, AnswerChecks
from harness.workload import PlannedRequest

RULE = (
    "Greedy answers, token by token. A token is right if it is the reference's, or if its logit there is "
    f"lower by at most {NOISE_FACTOR:g} times the most that running in the engines' dtype moves any logit "
    f"(at least {SPREAD_SHARE:g} of the logits' standard deviation): a near tie. Where answers end on their "
    "own, an end of sequence is a token too. An answer is not judged after a near tie or an end of sequence, "
    "nor where a server refuses because it has too much to do, or is not reached. "
    "An engine is wrong if an answer fails, has another length than asked for, or has another token without "
    "a near tie."
)
MAJORITY_RULE = (
    "There is no reference ({why}): greedy answers are compared with those of more than half of the engines. "
    "Near ties are unknown: an engine is wrong if an answer fails, has another length than asked for, or if "
    "more than half of its answers begin with another token."
)
NO_RULE = "There is no reference ({why}), and fewer than three engines: only failures and lengths are judged."
#: Fewer engines make no majority.
VOTERS = 3


class Replies(Strict):
    """The prompts of the answer check and the engines' replies: `answers.json`.

    `given` holds for each label one list of replies, in the order of the prompts, each time it was asked.
    """

    prompts: list[list[int]]
    given: dict[str, list[list[Reply]]] = Field(default_factory=dict)
    reference: Reference | str | None = Field(
        None, description="its answers, or in words why there are none; null before it was asked"
    )
    judged: AnswerChecks | None = Field(None, description="null while replies are missing")


def ask(
    target: Target, encode: Encoder, prompts: Sequence[Sequence[int]], in_flight: int, exact: bool
) -> list[Reply]:
    """A server's answers to all prompts, at most `in_flight` at once; with `exact`, another length is an
    error."""
    planned = [
        PlannedRequest(i, None, np.array(prompt, np.int32), OUTPUT_TOKENS) for i, prompt in enumerate(prompts)
    ]
    wire = [WireRequest(request.index, None, encode(request)) for request in planned]
    return ask_all(target, wire, in_flight, OUTPUT_TOKENS if exact else None)


def check(replies: Replies, engine_variants: Sequence[EngineVariant], tokenizer: Path | None) -> AnswerChecks:
    """Judge every engine of the run.

    Args:
        tokenizer: The model's tokenizer.json, for engines that return only text; None if it has none.
    """
    rule: str
    name: str | None
    bound: float | None
    decode = None if tokenizer is None else Tokenizer.from_file(str(tokenizer)).decode
    reference = replies.reference
    if isinstance(reference, Reference):
        rule, name, bound = RULE, f"{reference.version}, float32", tolerance(reference)
        expected = by_reference(reference)
    else:
        first = {label: rounds[0] for label, rounds in replies.given.items()}
        is_decided = len(first) >= VOTERS
        rule = (MAJORITY_RULE if is_decided else NO_RULE).format(why=reference)
        name, bound = (f"the majority of {len(first)} engines" if is_decided else None), None
        expected = by_majority(first, len(replies.prompts)) if is_decided else []
    checks = []
    for engine_variant in engine_variants:
        answers = [
            judge(reply, len(prompt), OUTPUT_TOKENS, expected[i] if expected else None, decode)
            for round_replies in replies.given.get(engine_variant.label, [])
            for i, (reply, prompt) in enumerate(zip(round_replies, replies.prompts, strict=True))
        ]
        reason = _wrong(answers, by_many=bound is None)
        judged = any(answer.outcome in ("same", "near tie", "different") for answer in answers)
        checks.append(
            AnswerCheck(
                engine=engine_variant.ref.name,
                variant=engine_variant.ref.variant,
                label=engine_variant.label,
                verdict="wrong" if reason else "same" if judged else "unknown",
                reason=reason or (None if judged else _unknown(answers)),
                answers=answers,
            )
        )
    return AnswerChecks(rule=rule, reference=name, tolerance=bound, checks=checks)


def _unknown(answers: Sequence[Answer]) -> Fact:
    """State why nothing is known of an engine."""
    details = [answer.detail for answer in answers if answer.detail]
    unknown = sum(answer.outcome == "unknown" for answer in answers)
    counts: dict[str, Value] = {"unknown": unknown, "answers": len(answers)}
    return Fact(kind="unchecked_answers", values=counts | {"detail": details[0]} if details else counts)


def _wrong(answers: Sequence[Answer], *, by_many: bool) -> Fact | None:
    """State why an engine is wrong; None if it is not. `by_many`: it is compared with a majority."""
    failed = [answer for answer in answers if answer.outcome == "failed"]
    if failed:
        counts: dict[str, Value] = {"failed": len(failed), "answers": len(answers)}
        return Fact(kind="failed_answers", values=counts | {"detail": failed[0].detail})
    different = [answer for answer in answers if answer.outcome == "different"]
    if by_many:
        different = [answer for answer in different if answer.same == 0]
        if 2 * len(different) <= len(answers):
            return None
    if not different:
        return None
    first = different[0]
    return Fact(
        kind="wrong_answers",
        values={
            "wrong": len(different),
            "answers": len(answers),
            "prompt_tokens": first.prompt_tokens,
            "position": first.same,
            "ended": first.ended,
        },
    )


LENGTHS = (4, 16, 33, 64, 100, 129)
OUTPUT_TOKENS = 16
#: Different from the seeds of loads.
_SEED = 0xA45


def check_prompts(model: Path, vocab_size: int, context: int) -> list[list[int]]:
    """Token ids of each prompt that fits the context.

    If the model has a tokenizer, the ids survive decoding and encoding, so that engines that take only text
    get the same prompts."""
    rng = np.random.default_rng(_SEED)
    lengths = [length for length in LENGTHS if length + OUTPUT_TOKENS <= context]
    drawn: list[list[int]] = [rng.integers(vocab_size, size=length).tolist() for length in lengths]
    try:
        text = text_prompts(model)
        return [text.tokens(prompt) for prompt in drawn]
    except EngineError:
        return drawn
