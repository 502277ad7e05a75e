"""A warning of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What a notice is about: the badge that holds it.
Topic = Literal[
    "cells",
    "rest",
    "engines",
    "answers",
    "client",
    "settings",
    "behind",
    "machine",
    "clocks",
    "length",
    "trace",
    "code",
    "routine",
    "other",
]


@dataclass(frozen=True)
class Notice:
    """A warning: what is the matter, and the details with the hint where there is one."""

    kind: Literal["invalid", "skipped", "load"]
    title: str
    detail: str
    topic: Topic = "cells"


def sentence(text: str) -> str:
    """The text with a full stop, if it has no other end."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
