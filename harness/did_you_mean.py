"""Suggestions for a misspelled name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, names: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return `did you mean vllm? ` if a name is close to up to `most` of `names`; else empty.

    Args:
        cutoff: difflib's ratio from which on a name is close.
    """
    close = get_close_matches(name, list(names), most, cutoff)
    return f"did you mean {' or '.join(close)}? " if close else ""
