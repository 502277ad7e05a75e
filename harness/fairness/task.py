"""A small task with known answers: what a model with real weights scores on a server as it was timed.

Items are generated, the same for every engine and run, and licensed as this project is. Each has four solved
examples ahead of the question, so that a model without chat training knows the form; an answer is right when
its first line is the expected text, character by character. The families are of different difficulty, so that
a small model gets neither none nor all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

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
            shown = [make(rng) for _ in range(EXAMPLES + 1)]
            *examples, (question, answer) = shown
            lines = [f"{asked} {solved}" for asked, solved in examples]
            items.append(Item(family, "\n".join([*lines, question]), answer))
    return items


def is_right(item: Item, text: str) -> bool:
    """Whether an answer's first line is the expected one."""
    return text.strip(" ").partition("\n")[0].strip() == item.answer
