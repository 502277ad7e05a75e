"""Fairness of a comparison: settings side by side, answers, and the parts of TTFT."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from harness.schema.base import OfEngine, Strict
from harness.schema.facts import Fact

Source = Literal["measured", "inferred", "unknown"]


#: The fact of a running server that has the times of prompts that were sent twice.
PROMPTS_AGAIN = "prompts_again"


class EngineFact(Strict):
    """A setting as an engine runs with it, in words that are the same for all engines."""

    value: JsonValue
    source: str = Field(description="where the engine said so: `start-up log`, `GET /server_info`, …")


Agreement = Literal["equal", "differs", "own", "unknown"]


class LedgerRow(Strict):
    """One setting of all engines."""

    key: str
    name: str = Field(description="as shown, with its unit")
    facts: dict[str, EngineFact | None] = Field(description="by label; null: the engine does not report it")
    agreement: Agreement = Field(
        description="of those that tell; own: each engine's own design, not to be equal; unknown: fewer than "
        "two tell"
    )


class Ledger(Strict):
    """The resolved settings of all engines side by side."""

    labels: list[str]
    rows: list[LedgerRow]

    @property
    def unequal(self) -> list[LedgerRow]:
        """The rows that make a comparison unfair."""
        return [row for row in self.rows if row.agreement == "differs"]


class Answer(Strict):
    """An engine's answer to one prompt of the check. Positions count from 0."""

    prompt_tokens: int
    asked: int = Field(description="output tokens")
    got: int = Field(description="output tokens that came")
    same: int = Field(description="leading tokens that are those of the reference")
    outcome: Literal["same", "near tie", "different", "failed", "unknown"] = Field(
        description="near tie: the first token that is another was as good as the reference's own, and those "
        "after it are not judged; unknown: nothing to judge it by"
    )
    ended: bool = Field(False, description="whether the first other token is an end of sequence")
    detail: str = Field("", description="the error of a request that failed, or why nothing is known")


class AnswerCheck(OfEngine):
    """One engine's answers to the prompts of the check."""

    verdict: Literal["same", "wrong", "unknown"] = Field(description="unknown: nothing to judge them by")
    reason: Fact | None = Field(None, description="why they are wrong, or why that is unknown")
    answers: list[Answer]


class AnswerChecks(Strict):
    """The same prompts, greedily, to every engine, and what the reference answers."""

    rule: str = Field(description="how answers were judged, in words")
    reference: str | None = Field(description="what answered for comparison; null: nothing could")
    tolerance: float | None = Field(
        None, description="logits that a token may fall short of the reference's best and count as as good"
    )
    checks: list[AnswerCheck]

    @property
    def wrong(self) -> dict[str, Fact]:
        """Reasons why answers are wrong, by the engine's label."""
        wrong = [check for check in self.checks if check.verdict == "wrong"]
        return {check.label: check.reason for check in wrong if check.reason is not None}


class TaskReply(Strict):
    """One engine's answers to the items of the task, in their order."""

    right: list[bool]
    failed: int = Field(0, description="requests without an answer; they count as wrong")
    perplexity: float | None = Field(
        None, description="of a fixed text, a token; null where the server gives no logprobs of prompts"
    )


class TaskScore(Strict):
    """One engine's score."""

    label: str
    right: int
    items: int
    ci: tuple[float, float] = Field(description="95 % interval of right / items, by Wilson")
    by_family: dict[str, int] = Field(description="right items of each kind")
    failed: int = 0
    perplexity: float | None = None
    below: Fact | None = Field(None, description="significantly below another; `inaccurate`: it is invalid")

    @property
    def is_invalid(self) -> bool:
        """True if the score is so low that the engine is invalid."""
        return self.below is not None and self.below.kind == "inaccurate"

    @property
    def share(self) -> float:
        """Right items of all."""
        return self.right / self.items


class TaskScores(Strict):
    """A small task with known answers, asked of every engine of a run."""

    rule: str = Field(description="what was asked and how it was judged, in words")
    scores: list[TaskScore]


Part = Literal["client lag", "http", "queue", "prefill", "delivery", "unexplained"]

#: Where each part of a waterfall comes from, in the order in which a request goes through them.
PARTS: dict[Part, str] = {
    "client lag": "from when the schedule wanted the request sent until it was",
    "http": "until the server began its response: HTTP, JSON, tokenizing, checking",
    "queue": "until the engine began the prefill",
    "prefill": "until the engine had the first token",
    "delivery": "until that token was at the client: hand-over between processes, detokenizing, HTTP",
    "unexplained": "what the parts that are known leave over: HTTP, tokenizing and delivery where a "
    "server's head comes with its first token",
}


class WaterfallPart(Strict):
    """A part of the mean time to first token."""

    part: Part
    mean_ms: float | None = Field(
        description="over all requests; null if unknown. Unexplained can be below 0: "
        "then what an engine says is longer than what the client saw"
    )
    n: int = Field(description="requests of which it is known")
    source: Source
    how: str = Field(description="who says so")


class Waterfall(Strict):
    """Parts of the mean TTFT of a cell's successes; those that are known add up to `total_ms`."""

    n: int = Field(description="requests")
    total_ms: float = Field(description="mean TTFT from the schedule: client lag and TTFT")
    ttft_ms: float = Field(description="mean TTFT")
    parts: list[WaterfallPart]


class ReportedMean(Strict):
    """Mean of a metric over one cell by an engine's histogram."""

    mean_ms: float
    n: int = Field(description="requests it counted")
