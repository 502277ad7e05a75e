"""The answer check of a run: every engine is asked the same few prompts, and judged by the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from tokenizers import Tokenizer

from harness.engines.base import Contender, Encoder
from harness.fairness.check_prompts import OUTPUT_TOKENS
from harness.fairness.engine_reply import Reply, read_reply
from harness.fairness.judge import NOISE_FACTOR, SPREAD_SHARE, by_majority, by_reference, judge, tolerance
from harness.fairness.reference import Reference
from harness.loadgen.load_plan import LoadPlan, Target, WireRequest
from harness.loadgen.run_load import run_load
from harness.schema.base import Strict
from harness.schema.fairness import Answer, AnswerCheck, AnswerChecks

RULE = (
    "Greedy answers, token by token. A token is right when it is the reference's, or when its logit "
    f"there falls short by at most {NOISE_FACTOR:g} times the most that running in the engines' dtype moves "
    f"any logit (at least {SPREAD_SHARE:g} of the logits' standard deviation): a near tie, behind which an "
    "answer is not judged, nor behind an end of sequence. An engine is wrong when an answer fails, has "
    "another length than asked for, or has another token where there is no near tie."
)
MAJORITY_RULE = (
    "There is no reference ({why}): greedy answers are held against what more than half of the engines say. "
    "Nobody knows which tokens are near ties: an engine is wrong when an answer fails, has another length "
    "than asked for, or when more than half of its answers begin with another token."
)
NO_RULE = "There is no reference ({why}), and fewer than three engines: only failures and lengths are judged."
#: Fewer engines make no majority.
VOTERS = 3


class Replies(Strict):
    """What was asked of the engines of a run and what came back: `answers.json`.

    `given` holds for each label one list of replies, in the order of the prompts, each time it was asked.
    """

    prompts: list[list[int]]
    given: dict[str, list[list[Reply]]] = Field(default_factory=dict)
    reference: Reference | str | None = Field(
        None, description="its answers, or in words why there are none; null before it was asked"
    )
    judged: AnswerChecks | None = Field(None, description="null while replies are missing")


def ask(target: Target, encode: Encoder, prompts: Sequence[Sequence[int]], exact: bool) -> list[Reply]:
    """The answers of a server to all prompts, asked at once; with `exact`, another length is an error."""
    wire = [WireRequest(i, 0.0, encode(list(prompt), OUTPUT_TOKENS)) for i, prompt in enumerate(prompts)]
    result = run_load(LoadPlan(target, wire), start_delay_s=0.1)
    return [read_reply(raw, OUTPUT_TOKENS if exact else None) for raw in result.responses]


def check(replies: Replies, contenders: Sequence[Contender], tokenizer: Path | None) -> AnswerChecks:
    """Judge every engine of the run.

    Args:
        tokenizer: The model's tokenizer.json, for engines that give text alone; None where it has none.
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
        first = {label: asked[0] for label, asked in replies.given.items()}
        known = len(first) >= VOTERS
        rule = (MAJORITY_RULE if known else NO_RULE).format(why=reference)
        name, bound = (f"the majority of {len(first)} engines" if known else None), None
        expected = by_majority(first, len(replies.prompts)) if known else []
    checks = []
    for who in contenders:
        answers = [
            judge(reply, len(prompt), OUTPUT_TOKENS, expected[i] if expected else None, decode)
            for asked in replies.given.get(who.label, [])
            for i, (reply, prompt) in enumerate(zip(asked, replies.prompts, strict=True))
        ]
        reason = _wrong(answers, by_many=bound is None)
        judged = any(one.outcome in ("same", "near tie", "different") for one in answers)
        checks.append(
            AnswerCheck(
                engine=who.ref.name,
                variant=who.ref.variant,
                label=who.label,
                verdict="wrong" if reason else "same" if judged else "unknown",
                reason=reason or ("" if judged else "nothing to judge by" if answers else "it was not asked"),
                answers=answers,
            )
        )
    return AnswerChecks(rule=rule, reference=name, tolerance=bound, checks=checks)


def _wrong(answers: Sequence[Answer], *, by_many: bool) -> str:
    """Why an engine is wrong; empty where it is not. `by_many`: it is held against a majority."""
    failed = [one for one in answers if one.outcome == "failed"]
    if failed:
        return f"{len(failed)} of {len(answers)} answers failed: {failed[0].detail}"
    different = [one for one in answers if one.outcome == "different"]
    if by_many:
        different = [one for one in different if one.same == 0]
        if 2 * len(different) <= len(answers):
            return ""
    if not different:
        return ""
    first = different[0]
    return (
        f"{len(different)} of {len(answers)} greedy answers are other than they should be; after a prompt of "
        f"{first.prompt_tokens} tokens {first.detail}"
    )
