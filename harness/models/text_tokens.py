"""How many tokens a text has, by a model's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer


def token_counter(model: Path) -> Callable[[str], int] | None:
    """Counts the tokens of a text; None where the model's folder has no tokenizer.json."""
    path = model / "tokenizer.json"
    if not path.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(path))

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count
