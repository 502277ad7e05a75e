"""The answer check of a run: every engine answers the same few prompts, which a reference judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from harness.engines.base import Encoder, EngineVariant
from harness.engines.prompts import text_prompts
from harness.errors import EngineError
from harness.fairness.asking import Reply, ask_all, is_unanswered
from harness.fairness.reference import Reference
from harness.loadgen.load_plan import Target
from harness.schema.base import Strict
from harness.schema.facts import Fact
from harness.schema.fairness import Answer, AnswerCheck, AnswerChecks
from harness.workload import PlannedRequest

#: A logit may be below the best by this many times the largest change of any logit by the engines' dtype: two
#: logits may both change, in opposite directions.
NOISE_FACTOR = 2.0
#: At least by this share of their spread, for float32.
SPREAD_SHARE = 1e-3

#: In place of every end-of-sequence token: any of them ends an answer.
END = -1

#: Text of token ids.
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class ExpectedAnswer:
    """Reference answer to a prompt.

    Tokens whose logit is lower by at most `tolerance` are as good; with None that is unknown. `end` are the
    candidates for the end of sequence after `tokens`, None where none is known to follow; `ends` the tokens
    that end a sequence.
    """

    tokens: list[int]
    candidates: list[list[tuple[int, float]]]
    tolerance: float | None
    end: list[tuple[int, float]] | None = None
    ends: frozenset[int] = frozenset()

    @property
    def whole(self) -> ExpectedAnswer:
        """With its end of sequence as a token."""
        if self.end is None:
            return self
        return replace(self, tokens=[*self.tokens, END], candidates=[*self.candidates, self.end])

    def until_end(self, tokens: Sequence[int], *, ended: bool) -> list[int]:
        """An answer's tokens up to its first end of sequence, which is END. `ended`: one came after them."""
        end = next((i for i, token in enumerate(tokens) if token in self.ends), len(tokens))
        return [*tokens[:end], *[END] * (ended or end < len(tokens))]

    def as_good(self, position: int) -> list[int]:
        """Other tokens that are as good at this position."""
        if self.tolerance is None:
            return []
        near = [token for token, short in self.candidates[position] if short <= self.tolerance]
        named = [END if token in self.ends else token for token in near]
        return [token for token in named if token != self.tokens[position]]


def tolerance(reference: Reference) -> float:
    """Largest distance below the best logit at which a token still counts as equally good."""
    return max(NOISE_FACTOR * reference.noise, SPREAD_SHARE * reference.spread)


def by_reference(reference: Reference) -> list[ExpectedAnswer]:
    """The reference's answer to each prompt."""
    bound, ends = tolerance(reference), frozenset(reference.ends)
    return [ExpectedAnswer(it.tokens, it.candidates, bound, it.end, ends) for it in reference.answers]


def by_majority(replies: Mapping[str, Sequence[Reply]], prompts: int) -> list[ExpectedAnswer]:
    """For each prompt the longest beginning on which more than half of the engines agree, at least two."""
    expected = []
    for prompt in range(prompts):
        agreeing = [tokens for answers in replies.values() if (tokens := answers[prompt].tokens) is not None]
        agreed: list[int] = []
        while agreeing:
            place = len(agreed)
            votes = Counter(tokens[place] for tokens in agreeing if len(tokens) > place)
            token, count = votes.most_common(1)[0] if votes else (-1, 0)
            if count < 2 or count <= len(replies) / 2:
                break
            agreed.append(token)
            agreeing = [tokens for tokens in agreeing if tokens[: len(agreed)] == agreed]
        expected.append(ExpectedAnswer(agreed, [], None))
    return expected


def judge(
    reply: Reply,
    prompt_tokens: int,
    output_tokens: int,
    expected: ExpectedAnswer | None,
    decode: Decode | None,
) -> Answer:
    """Judge an answer; `expected` None: unknown. Text is compared if there are no ids.

    Where an answer ends on its own, an end of sequence is one of its tokens. In text it is seen where the
    answer ends too early, not where it goes on after the reference's.

    Args:
        output_tokens: The number asked for.
        decode: The model's tokenizer; without one, text cannot be judged.
    """
    judgement = Answer(
        prompt_tokens=prompt_tokens, asked=output_tokens, got=reply.count, same=0, outcome="failed"
    )
    if reply.error is not None:
        outcome = "unknown" if is_unanswered(reply) else "failed"
        return judgement.model_copy(update={"outcome": outcome, "detail": reply.error})
    if expected is None:
        return judgement.model_copy(update={"outcome": "unknown"})
    received = reply.count if reply.tokens is None else len(reply.tokens)
    ended = received < output_tokens and expected.tolerance is not None  # a majority may show its end or not
    if reply.tokens is not None:
        answer = expected.until_end(reply.tokens, ended=ended)
        whole = expected if reply.exact and not ended else expected.whole
        same, near = _tokens(answer, whole)
        complete = same == min(len(answer), len(whole.tokens))
        ended = answer[same : same + 1] == [END]
    elif decode is not None:
        same, near = _text(reply.text, expected, decode, exact=reply.exact)
        complete = same == len(expected.tokens)
        ended = ended and _whole(reply.text) == _whole(decode(expected.tokens[:same]))
    else:
        detail = "it returned only text, and the model has no tokenizer"
        return judgement.model_copy(update={"outcome": "unknown", "detail": detail})
    if complete:
        return judgement.model_copy(update={"same": min(same, len(expected.tokens)), "outcome": "same"})
    return judgement.model_copy(
        update={"same": same, "outcome": "near tie" if near else "different", "ended": ended}
    )


def _tokens(answer: Sequence[int], expected: ExpectedAnswer) -> tuple[int, bool]:
    """The number of equal leading tokens, and whether the first different one is as good."""
    pairs = zip(answer, expected.tokens, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(answer), len(expected.tokens)))
    other = same < min(len(answer), len(expected.tokens))
    return same, other and answer[same] in expected.as_good(same)


def _text(answer: str, expected: ExpectedAnswer, decode: Decode, *, exact: bool) -> tuple[int, bool]:
    """The same for text: the number of the reference's tokens with whose text the answer begins.

    Incomplete characters at the end of a piece are not compared. An end of sequence has no text; with `exact`
    other tokens follow it.
    """
    text = _whole(answer)
    same = 0
    while same < len(expected.tokens) and text.startswith(_whole(decode(expected.tokens[: same + 1]))):
        same += 1
    if same == len(expected.tokens):
        return same, False
    begun = expected.tokens[:same]

    def fits(token: int) -> bool:
        if token == END:
            return exact or text == _whole(decode(begun))
        return text.startswith(_whole(decode([*begun, token])))

    return same, any(map(fits, expected.as_good(same)))


def _whole(text: str) -> str:
    """Without replacement characters, which are in place of incomplete characters."""
    return text.replace("\ufffd", "")


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

    `by_engine` holds for each label one list of replies, in the order of the prompts, each time it was asked.
    """

    prompts: list[list[int]]
    by_engine: dict[str, list[list[Reply]]] = Field(default_factory=dict)
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
    return ask_all(target, encode, planned, in_flight, OUTPUT_TOKENS if exact else None)


def check(replies: Replies, engine_variants: Sequence[EngineVariant], tokenizer: Path | None) -> AnswerChecks:
    """Judge every engine of the run.

    Args:
        tokenizer: The model's tokenizer.json, for engines that return only text; None if it has none.
    """
    name: str | None
    bound: float | None
    decode = None if tokenizer is None else Tokenizer.from_file(str(tokenizer)).decode
    reference = replies.reference
    if isinstance(reference, Reference):
        rule, name, bound = RULE, f"{reference.version}, float32", tolerance(reference)
        expected = by_reference(reference)
    else:
        first = {label: rounds[0] for label, rounds in replies.by_engine.items()}
        is_decided = len(first) >= VOTERS
        rule = (MAJORITY_RULE if is_decided else NO_RULE).format(why=reference)
        name, bound = (f"the majority of {len(first)} engines" if is_decided else None), None
        expected = by_majority(first, len(replies.prompts)) if is_decided else []
    checks = []
    for engine_variant in engine_variants:
        answers = [
            judge(reply, len(prompt), OUTPUT_TOKENS, expected[i] if expected else None, decode)
            for round_replies in replies.by_engine.get(engine_variant.label, [])
            for i, (reply, prompt) in enumerate(zip(round_replies, replies.prompts, strict=True))
        ]
        reason = _wrong(answers, by_many=bound is None)
        judged = any(answer.outcome in ("same", "near tie", "different") for answer in answers)
        checks.append(
            AnswerCheck(
                **engine_variant.identity,
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
    detail = {"detail": details[0]} if details else {}
    return Fact.of("unchecked_answers", unknown=unknown, answers=len(answers), **detail)


def _wrong(answers: Sequence[Answer], *, by_many: bool) -> Fact | None:
    """State why an engine is wrong; None if it is not. `by_many`: it is compared with a majority."""
    failed = [answer for answer in answers if answer.outcome == "failed"]
    if failed:
        return Fact.of("failed_answers", failed=len(failed), answers=len(answers), detail=failed[0].detail)
    different = [answer for answer in answers if answer.outcome == "different"]
    if by_many:
        different = [answer for answer in different if answer.same == 0]
        if 2 * len(different) <= len(answers):
            return None
    if not different:
        return None
    first = different[0]
    return Fact.of(
        "wrong_answers",
        wrong=len(different),
        answers=len(answers),
        prompt_tokens=first.prompt_tokens,
        position=first.same,
        ended=first.ended,
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
