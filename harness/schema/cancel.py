"""Results of `bench cancel`: `cancel.json`."""

from __future__ import annotations

from pydantic import Field

from harness.schema.base import Strict
from harness.schema.results import Skipped
from harness.schema.run_info import RunInfo


class Median(Strict):
    """A median and its 95 % interval by order statistics; None where there are too few pairs for one."""

    value: float
    ci: tuple[float, float] | None = None


class Departure(Strict):
    """Cost of clients that leave after `after` chunks with tokens, for one engine."""

    label: str
    after: int = Field(description="chunks with tokens that each client read before it left")
    pairs: int = Field(description="departures that count, each beside an answer that ended after as many")
    left_out: int = Field(0, description="pairs in which the waiting request had its first token too early")
    ended_ms: Median = Field(description="from the end of an answer to the waiting request's first token")
    left_ms: Median = Field(description="the same from when a client left")
    later_ms: Median = Field(description="left_ms − ended_ms, pair by pair: how much later the slot is free")
    step_ms: Median = Field(description="time per output token of the request whose client left")
    unread: Median = Field(description="tokens that nobody read: later_ms / step_ms")
    counted: Median | None = Field(None, description="the same by the server's counter of output tokens")
    each_later_ms: list[float]
    each_unread: list[float]


class CancelResults(Strict):
    """All engines of `bench cancel`; `slots` requests ran at a time, with answers of `answer_tokens`."""

    meta: RunInfo
    slots: int
    answer_tokens: int
    rows: list[Departure]
    skipped: list[Skipped]
