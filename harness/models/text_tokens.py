"""How many tokens a text has, by a model's own tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

#: What rosemodels fills a vocabulary with.
_FILLER = re.compile(r"(<[1-9][0-9]*>)")


def load_tokenizer(model: Path) -> Tokenizer | None:
    """The tokenizer in the model's folder; None where it has no tokenizer.json."""
    path = model / "tokenizer.json"
    return Tokenizer.from_file(str(path)) if path.is_file() else None


def token_counter(model: Path) -> Callable[[str], int] | None:
    """Counts the tokens of a text; None where the model's folder has no tokenizer.json.

    A word `<N>` that is token N is one: a made model says it, but its tokenizer makes several tokens of it.
    """
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        return None

    vocabulary = tokenizer.get_vocab()

    def count(text: str) -> int:
        said, rest = 0, [""]
        for piece in _FILLER.split(text):
            if _FILLER.fullmatch(piece) and vocabulary.get(piece) == int(piece[1:-1]):
                said += 1
                rest.append("")
            else:
                rest[-1] += piece
        return said + sum(len(found.ids) for found in tokenizer.encode_batch(rest, add_special_tokens=False))

    return count
