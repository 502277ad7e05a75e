"""What a run found: `online_results.json`, `offline_results.json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.plain_text import one_line
from harness.schema.base import Strict
from harness.schema.cell_notice import CellNotice
from harness.schema.fairness import AnswerChecks, Ledger, ReportedMean, TaskScores
from harness.schema.load import Load
from harness.schema.machines import HostCell, MachineLoad
from harness.schema.online_summary import OnlineSummary
from harness.schema.run_info import SCHEMA_VERSION, OfflineRunInfo, OnlineRunInfo
from harness.schema.search import SearchResults
from harness.schema.speculation import Speculation
from harness.schema.tune import TuneResults
from harness.schema.verdict import Verdict

#: Shared prefixes are counted in whole blocks of so many tokens, as engines cache them.
PREFIX_BLOCK_TOKENS = 16


class Skipped(Strict):
    """An engine that was asked for and is not in the results, and what would bring it in."""

    engine: str
    variant: str | None = None
    label: str
    load: Load | None = Field(None, description="null: the engine is absent from every load")
    repeat: int | None = None
    reason: str
    cause: str = Field(
        "",
        description="the reason without how far the cell was, where its server was lost in the middle of it",
    )
    hint: str = ""
    new_run: bool = Field(False, description="whether the hint changes settings, which a run keeps")

    @property
    def is_whole_engine(self) -> bool:
        """Whether the engine was not there; otherwise a cell of it failed."""
        return self.load is None and self.repeat is None

    @property
    def said(self) -> str:
        """Reason and hint as one line."""
        return one_line("; ".join(filter(None, (one_line(self.reason, 500), self.hint))))


class Comparison(Strict):
    """A statistic of two engines at one load, and the ratio `a / b` with its 95 % interval."""

    a: str
    b: str
    load: Load
    metric: str
    statistic: str
    value_a: float
    value_b: float
    ratio: float
    ci: tuple[float, float] | None = None
    difference: bool | None = Field(None, description="whether the interval excludes 1; null without one")
    adjusted_p: float | None = Field(
        None, description="two-sided p-value of no difference, by Holm for all comparisons of the run"
    )
    comparisons: int = Field(1, description="how many of the run were made at once")
    primary: bool = Field(
        False, description="whether it is one of those that share four fifths of the 5 % of all comparisons"
    )
    verdict: Verdict = Field(
        "not enough data", description="of `a` against `b`, at 5 % for all comparisons of the run together"
    )
    spread: float | None = Field(
        None, description="standard deviation of the logarithm from repeat to repeat; null if there was one"
    )
    repeats: tuple[int, int] = Field((1, 1), description="of `a` and of `b`")
    repeats_to_find: dict[str, int | None] = Field(
        default_factory=dict,
        description="repeats of each that find a difference of so much; null: unknown, or too many",
    )


class PrefixCount(Strict):
    """What an engine's counters of its prefix cache rose by during a cell, in prompt tokens."""

    hits: float
    queries: float
    source: str = Field(description="the page and the counters")


class PrefixHits(Strict):
    """How much of the prompts of one cell a prefix cache could have held, and how much it did."""

    engine: str
    variant: str | None = None
    label: str
    load: Load
    repeat: int
    block_tokens: int = PREFIX_BLOCK_TOKENS
    prompt_tokens: int = Field(description="of all requests that were sent")
    possible: float = Field(
        description="share of them that an unbounded cache of whole blocks holds, in the order of sending"
    )
    reported: float | None = Field(description="as the engine reports it; null where it does not")
    source: str = Field(description="of what is reported")


class OnlineResults(Strict):
    """`online_results.json`."""

    schema_version: Literal[2] = SCHEMA_VERSION
    meta: OnlineRunInfo
    summaries: list[OnlineSummary]
    comparisons: list[Comparison] = Field(default_factory=list)
    skipped: list[Skipped] = Field(default_factory=list)
    prefixes: list[PrefixHits] = Field(default_factory=list, description="one a cell")
    speculation: list[Speculation] = Field(
        default_factory=list, description="one a cell whose engine reports it"
    )
    ledger: Ledger | None = None
    search: SearchResults | None = Field(None, description="of `bench search`")
    tune: TuneResults | None = Field(None, description="of `bench tune`")
    answers: AnswerChecks | None = None
    accuracy: TaskScores | None = Field(None, description="null where the model has no trained weights")
    reported: dict[int, dict[str, ReportedMean]] = Field(
        default_factory=dict, description="means by the engines' own histograms, by cell and metric"
    )
    machines: dict[int, MachineLoad] = Field(
        default_factory=dict, description="what the machine did during each cell"
    )
    senders: dict[int, list[HostCell]] = Field(
        default_factory=dict, description="of a cluster: what the nodes that send did in each cell"
    )
    nodes: dict[int, str] = Field(
        default_factory=dict, description="of a cluster: where the engine ran in each cell"
    )


class OfflineResult(Strict):
    """One engine's throughput on the fixed batch, one repeat."""

    engine: str
    variant: str | None = None
    label: str
    repeat: int
    num_prompts: int
    batches: int = Field(1, description="how often it was run; tokens and seconds are of one on average")
    prompt_tokens: int
    completion_tokens: int
    total_s: float
    req_per_s: float
    output_tok_per_s: float
    total_tok_per_s: float
    output_tok_per_s_per_gpu: float | None = Field(None, description="null where no GPU was used")
    notices: list[CellNotice] = Field(
        default_factory=list, description="what a reader must know before believing the figures"
    )


class BatchComparison(Strict):
    """Output tokens a second of two engines, `a / b`, over the repeats that both have. Each repeat has its
    own prompts, the same for all engines, so ratios are taken repeat by repeat."""

    a: str
    b: str
    repeats: int
    ratio: float = Field(description="of the means over these repeats")
    ci: tuple[float, float] | None = Field(None, description="95 % interval of the ratio of a repeat")
    adjusted_p: float | None = Field(
        None, description="two-sided p-value of no difference, by Holm for all comparisons of the run"
    )
    comparisons: int = Field(1, description="how many of the run were made at once")
    verdict: Verdict = Field(description="of `a` against `b`, at 5 % for all comparisons of the run together")


class OfflineResults(Strict):
    """`offline_results.json`."""

    schema_version: Literal[2] = SCHEMA_VERSION
    meta: OfflineRunInfo
    results: list[OfflineResult]
    comparisons: list[BatchComparison] = Field(default_factory=list)
    skipped: list[Skipped] = Field(default_factory=list)

    @property
    def left(self) -> list[tuple[str, int]]:
        """Label and repeat of what the run ended before: it was neither measured nor failed."""
        known = {(row.label, row.repeat) for row in self.results}
        known |= {(fault.label, fault.repeat) for fault in self.skipped if fault.repeat is not None}
        return [turn for turn in self.meta.order if turn not in known]
