"""How many tokens a text has, by a model's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer


def load_tokenizer(model: Path) -> Tokenizer | None:
    """The tokenizer in the model's folder; None where it has no tokenizer.json."""
    path = model / "tokenizer.json"
    return Tokenizer.from_file(str(path)) if path.is_file() else None


def token_counter(model: Path) -> Callable[[str], int] | None:
    """Counts the tokens of a text; None where the model's folder has no tokenizer.json."""
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        return None

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count
