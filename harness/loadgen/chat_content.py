"""The `content` of a chat's delta: text, or a list of parts, as Mistral's reasoning models send it."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct):
    """`{"type":"text","text":…}`, or `{"type":"thinking","thinking":…}` with text or parts of its own."""

    text: str | None = None
    thinking: list[Part] | str | None = None


Content = list[Part] | str | None


def answer_of(content: Content) -> str:
    """The text without reasoning."""
    if isinstance(content, list):
        return "".join(part.text or "" for part in content)
    return content or ""


def thought_of(content: Content) -> str:
    """The reasoning."""
    return "".join(answer_of(part.thinking) for part in content) if isinstance(content, list) else ""
