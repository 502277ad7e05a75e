"""What people asked, and what was answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, the answer that was recorded (None: none was), and the seconds that the person thought
    between the answer before it and this question."""

    question: str
    answer: str | None = None
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order, at least one; `system` is the instruction before them."""

    turns: tuple[Turn, ...]
    system: str | None = None


@dataclass(frozen=True)
class Dataset:
    """Conversations in the order of their file; `skipped` entries have no question, or more than text."""

    name: str
    conversations: tuple[Conversation, ...]
    sha256: str
    origin: str
    licence: str | None = None
    citation: str | None = None
    note: str | None = None
    skipped: int = 0
