"""Whether answers are the same: honest about half precision, which may choose otherwise at a near tie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.fairness.engine_reply import Reply
from harness.fairness.reference import Reference, ReferenceAnswer
from harness.schema.fairness import Answer

#: A logit may fall short of the best by this many times the most that the engines' dtype moves any logit: of
#: two logits each may move, and in opposite directions.
NOISE_FACTOR = 2.0
#: At least by this share of their spread, for float32.
SPREAD_SHARE = 1e-3

#: Text of token ids.
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Expected:
    """What a prompt's answer should be.

    Tokens that fall short by at most `tolerance` are as good; with None nobody knows how near others came.
    """

    tokens: list[int]
    candidates: list[list[tuple[int, float]]]
    tolerance: float | None

    def as_good(self, position: int) -> list[int]:
        """Other tokens that may stand at this position."""
        if self.tolerance is None:
            return []
        near = self.candidates[position]
        return [token for token, short in near if short <= self.tolerance and token != self.tokens[position]]


def tolerance(reference: Reference) -> float:
    """How far below the best a logit may be to count as as good."""
    return max(NOISE_FACTOR * reference.noise, SPREAD_SHARE * reference.spread)


def by_reference(reference: Reference) -> list[Expected]:
    """What the reference expects, prompt by prompt."""
    bound = tolerance(reference)

    def expected(answer: ReferenceAnswer) -> Expected:
        return Expected(answer.tokens, answer.candidates, bound)

    return [expected(answer) for answer in reference.answers]


def by_majority(replies: Mapping[str, Sequence[Reply]], prompts: int) -> list[Expected]:
    """Prompt by prompt the longest beginning on which more than half of the engines agree, at least two."""
    found = []
    for prompt in range(prompts):
        told = [tokens for answers in replies.values() if (tokens := answers[prompt].tokens) is not None]
        agreed: list[int] = []
        while told:
            place = len(agreed)
            votes = Counter(tokens[place] for tokens in told if len(tokens) > place)
            token, count = votes.most_common(1)[0] if votes else (-1, 0)
            if count < 2 or count <= len(replies) / 2:
                break
            agreed.append(token)
            told = [tokens for tokens in told if tokens[: len(agreed)] == agreed]
        found.append(Expected(agreed, [], None))
    return found


def judge(
    reply: Reply, prompt_tokens: int, asked: int, expected: Expected | None, decode: Decode | None
) -> Answer:
    """One answer against what was expected; None: nobody knows. Text is compared where there are no ids.

    Args:
        asked: Output tokens asked for.
        decode: The model's tokenizer; None where it has none, and then text cannot be judged.
    """
    found = Answer(prompt_tokens=prompt_tokens, asked=asked, got=reply.count, same=0, outcome="failed")
    if reply.error is not None:
        return found.model_copy(update={"detail": reply.error})
    if expected is None:
        return found.model_copy(update={"outcome": "unknown"})
    if reply.tokens is not None:
        same, near = _tokens(reply.tokens, expected)
        complete = same == min(len(reply.tokens), len(expected.tokens))
    elif decode is not None:
        same, near = _text(reply.text, expected, decode)
        complete = same == len(expected.tokens)
    else:
        detail = "text alone, and the model has no tokenizer to read it by"
        return found.model_copy(update={"outcome": "unknown", "detail": detail})
    if complete:
        return found.model_copy(update={"same": same, "outcome": "same"})
    detail = f"another token at position {same}"
    return found.model_copy(
        update={"same": same, "outcome": "near tie" if near else "different", "detail": detail}
    )


def _tokens(given: Sequence[int], expected: Expected) -> tuple[int, bool]:
    """Leading tokens that are the same, and whether the first other one is as good."""
    pairs = zip(given, expected.tokens, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(given), len(expected.tokens)))
    other = same < min(len(given), len(expected.tokens))
    return same, other and given[same] in expected.as_good(same)


def _text(given: str, expected: Expected, decode: Decode) -> tuple[int, bool]:
    """The same by text: tokens of the reference whose text the answer begins with.

    Half characters at the end of a piece are left out of the comparison.
    """
    text = _whole(given)
    same = 0
    while same < len(expected.tokens) and text.startswith(_whole(decode(expected.tokens[: same + 1]))):
        same += 1
    if same == len(expected.tokens):
        return same, False
    begun = expected.tokens[:same]
    return same, any(text.startswith(_whole(decode([*begun, one]))) for one in expected.as_good(same))


def _whole(text: str) -> str:
    """Without replacement characters, which stand for bytes that are no character yet."""
    return text.replace("\ufffd", "")
