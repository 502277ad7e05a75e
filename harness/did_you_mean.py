"""What a misspelled name may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """`did you mean vllm? ` of a name close to one of `known`, or to up to `most` of them; else empty.

    Args:
        cutoff: difflib's ratio from which on a name is close.
    """
    close = get_close_matches(name, list(known), most, cutoff)
    return f"did you mean {' or '.join(close)}? " if close else ""
