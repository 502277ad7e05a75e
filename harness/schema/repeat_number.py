"""Repeats are counted from 0 in files, and from 1 in what people read."""


def repeat_text(repeat: int | None) -> str:
    """`repeat 1` of the first, which is 0 in files; None: `all repeats`."""
    return "all repeats" if repeat is None else f"repeat {repeat + 1}"
