"""Lists as the command line writes them: `a,b,c`."""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import UsageError


def split(text: str) -> list[str]:
    """The parts of `a,b,c`. Raises ValueError: one is empty."""
    parts = [part.strip() for part in text.split(",")]
    if parts == [""]:
        raise ValueError("must not be empty")
    if "" in parts:
        raise ValueError("must have a value before and after each comma")
    return parts


def listed(value: object) -> object:
    """Accept `a,b,c`, or one number, where a list is meant. Raises ValueError: a part is empty."""
    if isinstance(value, int | float):
        return [value]
    return split(value) if isinstance(value, str) else value


def by_name(value: object, form: str, read: Callable[[str], tuple[str, str]]) -> object:
    """Accept what `form` shows, a list with commas, where a mapping is meant.

    Args:
        read: The name and the value of a part.

    Raises:
        ValueError: it is neither, or a name is given twice.
    """
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise ValueError(f"must be {form}")
    found: dict[str, str] = {}
    for name, text in map(read, split(value)):
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = text
    return found


def split_option(option: str, text: str) -> list[str]:
    """The parts of `a,b,c` as an option gives them. Raises UsageError: one is empty."""
    try:
        return split(text)
    except ValueError as error:
        raise UsageError(f"{option}: {text!r} {error}", "write it like a,b,c") from None
