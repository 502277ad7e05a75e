"""Comparison of greedy answers; half precision may choose another token at a near tie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.fairness.asking import Reply, is_unanswered
from harness.fairness.reference import Reference, ReferenceAnswer
from harness.schema.fairness import Answer

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
    bound = tolerance(reference)

    def expected(answer: ReferenceAnswer) -> ExpectedAnswer:
        return ExpectedAnswer(answer.tokens, answer.candidates, bound, answer.end, frozenset(reference.ends))

    return [expected(answer) for answer in reference.answers]


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
