"""What a run found: `online_results.json`, `offline_results.json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.plain_text import one_line
from harness.schema.base import Strict
from harness.schema.fairness import AnswerChecks, Ledger, ReportedMean, TaskScores
from harness.schema.load import Batch, Load
from harness.schema.machines import HostCell, MachineLoad
from harness.schema.online_summary import OnlineSummary
from harness.schema.run_info import SCHEMA_VERSION, RunInfo
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


class BatchRow(Strict):
    """Throughput of one engine on a batch in one repeat: a row of `offline_results.json`."""

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

    @classmethod
    def of(cls, summary: OnlineSummary) -> BatchRow:
        """Return the row of a cell whose load is a batch."""
        assert isinstance(summary.load, Batch) and summary.repeat is not None
        batches = max(1, summary.num_success // summary.load.prompts)
        return cls(
            engine=summary.engine,
            variant=summary.variant,
            label=summary.label,
            repeat=summary.repeat,
            num_prompts=summary.load.prompts,
            batches=batches,
            prompt_tokens=round(summary.prompt_tokens / batches),
            completion_tokens=round(summary.completion_tokens / batches),
            total_s=summary.duration_s / batches,
            req_per_s=summary.req_per_s,
            output_tok_per_s=summary.output_tok_per_s,
            total_tok_per_s=summary.total_tok_per_s,
            output_tok_per_s_per_gpu=summary.output_tok_per_s_per_gpu,
        )


class OnlineResults(Strict):
    """`online_results.json`, and `offline_results.json` of a run whose load is a batch."""

    schema_version: Literal[1] = SCHEMA_VERSION
    meta: RunInfo
    summaries: list[OnlineSummary]
    results: list[BatchRow] = Field(
        default_factory=list,
        exclude_if=lambda rows: not rows,
        description="of a batch: the summaries of its cells as rows of throughput",
    )
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
