"""A small task with known answers: what a model with real weights scores on a server as it was timed.

Items are generated, the same for every engine and run, and licensed as this project is. Each has four solved
examples ahead of the question, so that a model without chat training knows the form; an answer is right when
its first line is the expected text, character by character. The families are of different difficulty, so that
a small model gets neither none nor all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pydantic import Field

from harness.metrics.contrast import holm
from harness.metrics.intervals import LEVEL, wilson
from harness.schema.base import Strict
from harness.schema.facts import Fact, FactKind
from harness.schema.fairness import TaskReply, TaskScore, TaskScores

#: Items of each family, and the examples ahead of each.
EACH, EXAMPLES = 40, 4
#: Output tokens of an answer: the longest has fewer in every tokenizer that was tried.
OUTPUT_TOKENS = 16
_SEED = 20_261_122

_NOUNS = (
    "apple river stone cloud table green horse light bread winter garden paper window silver music ocean "
    "forest candle bridge yellow mountain letter summer blue chair north bottle circle dinner engine"
)
_SINGULARS = (
    "cat dog car tree book house lamp door pen bird hand road box bus dish watch fox church city baby story "
    "lady knife leaf wolf life man woman child foot tooth mouse"
)
_WORDS, _PLURALS = _NOUNS.split(), _SINGULARS.split()
_IRREGULAR = {
    "man": "men", "woman": "women", "child": "children", "foot": "feet", "tooth": "teeth", "mouse": "mice",
    "knife": "knives", "leaf": "leaves", "wolf": "wolves", "life": "lives",
}  # fmt: skip


@dataclass(frozen=True)
class Item:
    """A question after its examples, and the line that answers it."""

    family: str
    prompt: str
    answer: str


def _addition(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(2, 49), rng.randint(2, 49)
    return f"{a} + {b} =", str(a + b)


def _subtraction(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(1, 20), rng.randint(1, 20)
    return f"{a + b} - {a} =", str(b)


def _sequence(rng: random.Random) -> tuple[str, str]:
    start, step = rng.randint(1, 30), rng.randint(2, 9)
    return " ".join(str(start + step * place) for place in range(4)), str(start + 4 * step)


def _copy(rng: random.Random) -> tuple[str, str]:
    words = " ".join(rng.sample(_WORDS, 5))
    return f"Repeat: {words}\nAnswer:", words


def _last(rng: random.Random) -> tuple[str, str]:
    words = rng.sample(_WORDS, 4)
    return f"Last word of: {' '.join(words)}\nAnswer:", words[-1]


def _plural(rng: random.Random) -> tuple[str, str]:
    word = rng.choice(_PLURALS)
    if word in _IRREGULAR:
        return f"one {word}, two", _IRREGULAR[word]
    if word.endswith("y"):
        return f"one {word}, two", f"{word[:-1]}ies"
    return f"one {word}, two", word + ("es" if word.endswith(("x", "s", "sh", "ch")) else "s")


FAMILIES: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "addition": _addition,
    "subtraction": _subtraction,
    "sequence": _sequence,
    "copy": _copy,
    "last word": _last,
    "plural": _plural,
}


def make_items() -> list[Item]:
    """Every item, families in turn, so that any beginning of the list has all of them."""
    rng = random.Random(_SEED)
    items = []
    for _ in range(EACH):
        for family, make in FAMILIES.items():
            *examples, (question, answer) = [make(rng) for _ in range(EXAMPLES + 1)]
            lines = [f"{example} {solution}" for example, solution in examples]
            items.append(Item(family, "\n".join([*lines, question]), answer))
    return items


def is_right(item: Item, text: str) -> bool:
    """Return whether an answer's first line is the expected one."""
    return text.strip(" ").partition("\n")[0].strip() == item.answer


TEXT = """\
The ferry leaves the harbour at a quarter past seven, when the market on the quay is still being set up. \
On most mornings about forty people cross to the island: teachers, two nurses, the man who repairs clocks, \
and children who do their homework on the upper deck because the tables there are wide and dry. The captain \
knows nearly all of them by name. If somebody is missing, she asks the others whether he is ill.

The crossing takes thirty-five minutes in calm weather. In the first ten the boat passes the old lighthouse, \
which has not been lit since a new one was built further out, and the rocks on which seals lie in summer. \
Then there is only water for a while. Some passengers read, some sleep, and a few stand outside in every \
season and look at the line where the sky begins.

When the engine was replaced three years ago, the company measured how much fuel each trip needed. The new \
engine used a fifth less than the old one at the same speed. With the money that was saved, the company \
bought a second boat, smaller than the first, which now makes the trip at night. It carries letters, bread \
and, once a month, the books that the library on the island has ordered from the town.
"""


RULE = (
    f"{EACH * len(FAMILIES)} generated items ({', '.join(FAMILIES)}), asked once of each engine on the timed "
    "server with its timed settings, greedily; an item is right if the first line of the answer is the "
    "expected one. Intervals are Wilson's, 95 %. All engines get the same items, so two of them are compared "
    "by the items that only one has right (McNemar's exact test), and all pairs are corrected together "
    "(Holm). An engine that is worse than another at 5 %, and by 5 points or more, is invalid: fast and "
    "wrong is not fast. Less than that, half precision alone can do: then there is a notice."
)
#: The least difference of two shares for which an engine is invalid.
MARGIN = 0.05


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> float:
    """The exact p-value of two engines being right equally often (McNemar, Psychometrika 12, 1947)."""
    only_a = sum(x and not y for x, y in zip(a, b, strict=True))
    only_b = sum(y and not x for x, y in zip(a, b, strict=True))
    if only_a + only_b == 0:
        return 1.0
    from scipy.stats import binomtest  # a second to import

    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue)


class TaskReplies(Strict):
    """`accuracy.json`: replies by the label of the engine."""

    by_engine: dict[str, TaskReply] = Field(default_factory=dict)


def judge_task(items: Sequence[Item], replies: Mapping[str, TaskReply]) -> TaskScores:
    """Score every engine, by label, and hold each against the others."""
    pairs = list(combinations(replies, 2))
    adjusted = holm([mcnemar(replies[a].right, replies[b].right) for a, b in pairs])
    below: dict[str, Fact] = {}
    for (a, b), p in zip(pairs, adjusted, strict=True):
        if p is None or p > LEVEL:
            continue
        low, high = sorted((a, b), key=lambda label: sum(replies[label].right))
        fewer = sum(replies[high].right) - sum(replies[low].right)
        kind: FactKind = "inaccurate" if fewer >= MARGIN * len(items) else "less_accurate"
        if low not in below or (kind == "inaccurate" and below[low].kind == "less_accurate"):
            below[low] = _below(kind, replies[low], high, replies[high], p)
    scores = []
    for label, reply in replies.items():
        right, n = sum(reply.right), len(reply.right)
        by_family = {
            family: sum(ok for ok, item in zip(reply.right, items, strict=True) if item.family == family)
            for family in FAMILIES
        }
        scores.append(
            TaskScore(
                label=label,
                right=right,
                items=n,
                ci=wilson(right, n),
                by_family=by_family,
                failed=reply.failed,
                perplexity=reply.perplexity,
                below=below.get(label),
            )
        )
    return TaskScores(rule=RULE, scores=scores)


def _below(kind: FactKind, reply: TaskReply, other: str, better: TaskReply, p: float) -> Fact:
    """State that a score is below that of another engine."""
    return Fact.of(
        kind,
        right=sum(reply.right),
        items=len(reply.right),
        failed=reply.failed,
        other=other,
        other_right=sum(better.right),
        other_failed=better.failed,
        p=p,
    )
