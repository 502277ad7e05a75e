"""What an engine reports of speculative decoding."""

from __future__ import annotations

from pydantic import Field

from harness.schema.base import Strict
from harness.schema.load import Load


class SpeculationCount(Strict):
    """What an engine's counters of speculative decoding say of a cell."""

    steps: float = Field(description="drafts that were verified")
    tokens_per_step: float = Field(description="accepted tokens and the one after them, on average")
    accepted: float | None = Field(None, description="share of drafted tokens that were accepted")
    by_position: list[float] = Field(
        default_factory=list,
        description="share of steps that accepted the first drafted token, the second, …; empty: unknown",
    )
    source: str = Field(description="the page and the counters")


class Speculation(Strict):
    """The same beside the engine, the load and the repeat of its cell."""

    engine: str
    variant: str | None = None
    label: str
    load: Load
    repeat: int
    count: SpeculationCount
