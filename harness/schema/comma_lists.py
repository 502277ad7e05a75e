"""Lists as the command line writes them: `a,b,c`."""

from __future__ import annotations


def split(text: str) -> list[str]:
    """The parts of `a,b,c`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def listed(value: object) -> object:
    """Accept `a,b,c`, or one number, where a list is meant."""
    if isinstance(value, int | float):
        return [value]
    return split(value) if isinstance(value, str) else value
