"""Results of a run: `online_results.json`, `offline_results.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from harness.errors import UsageError
from harness.plain_text import one_line
from harness.schema.base import OfEngine, Strict, Verdict
from harness.schema.facts import Fact
from harness.schema.fairness import AnswerChecks, Ledger, ReportedMean, Source, TaskScores, Waterfall
from harness.schema.load import Batch, Load
from harness.schema.machines import HostCell, MachineLoad
from harness.schema.metrics import BUILT_IN, METRICS
from harness.schema.run_info import SCHEMA_VERSION, RunInfo
from harness.schema.search import SearchResults
from harness.schema.tune import TuneResults


def _is_zero(value: int) -> bool:
    return not value


class Distribution(Strict):
    """One metric of one summary: milliseconds, numpy's linear percentiles. All None when n is 0."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    n: int = 0
    censored: int = Field(
        0,
        description="samples of failed requests that are tolerated, which count as above every other; then "
        "there is neither mean nor maximum",
        exclude_if=_is_zero,
    )
    ci: dict[str, tuple[float, float]] = Field({}, description="95 % interval by statistic name")
    withheld: list[str] = Field(
        [], description="percentiles of too few samples, or among failed requests, which tables do not show"
    )
    source: Source = "measured"


#: Latencies that every summary has. Runs that are older than another one lack it: it has no sample there.
_ALWAYS = [metric.name for metric in BUILT_IN if metric.is_latency and "headline" in metric.uses]


def _list_metrics(schema: dict[str, Any]) -> None:
    """Show each metric of the registry as a field of its own in `bench schema`."""
    [distribution, *number] = schema.pop("additionalProperties")["anyOf"]
    for name, metric in METRICS.items():
        if metric.is_latency or (metric.fraction is not None and name not in schema["properties"]):
            shape = distribution if metric.is_latency else {"anyOf": number, "default": None}
            schema["properties"][name] = shape | {"title": metric.label, "description": metric.meaning}
    schema["required"] = [*schema["required"], *_ALWAYS]


class OnlineSummary(Strict):
    """One engine at one load: one repeat, or all repeats pooled (`repeat` is null).

    It has a distribution of each latency by its name (`summary.ttft_ms`, or `summary.latency(name)`), and
    each rate (`summary.req_per_s`, or `summary.value(name, name)`). A metric that another installation has
    added is kept, and one that was not measured has no sample.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=_list_metrics)
    __pydantic_extra__: dict[str, Distribution | float | None]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Distribution: ...

    engine: str
    variant: str | None = None
    label: str
    load: Load
    repeat: int | None = None
    num_requests: int
    num_success: int
    num_error: int
    resent: int = Field(0, description="times that requests were sent again, as their connection was closed")
    errors: dict[str, int] = Field({})
    duration_s: float
    offered_req_per_s: float
    req_per_s: float
    output_tok_per_s: float
    total_tok_per_s: float
    output_tok_per_s_per_gpu: float | None = Field(None, description="null where no GPU was used")
    goodput_req_per_s: float | None = None
    slo_met: float | None = Field(
        None, description="share of the requests that keep to the service level; one that failed does not"
    )
    rates_ci: dict[str, tuple[float, float]] = Field(
        {}, description="95 % intervals of several repeats, by rate"
    )
    peak_in_flight: int | None = Field(
        None, description="the most requests sent and not ended at once; null: the raw times are not known"
    )
    prompt_tokens: int
    completion_tokens: int
    chunks: int
    engine_cpu_s: float | None = Field(
        None, description="CPU seconds of the engine's processes in the whole cell"
    )
    joules: float | None = Field(None, description="by energy counters of the GPUs, or else the processors")
    accuracy: float | None = Field(None, description="share of right items; null: its engine was not asked")
    accuracy_ci: tuple[float, float] | None = None
    cpu_ms_per_output_token: float | None = None
    joules_per_output_token: float | None = None
    joules_per_output_token_ci: tuple[float, float] | None = Field(None, description="of several repeats")
    joules_above_idle: float | None = Field(
        None, description="without what the idle machine took before; null: that was not measured"
    )
    joules_above_idle_per_output_token: float | None = None
    joules_above_idle_per_output_token_ci: tuple[float, float] | None = None
    joules_per_request: float | None = None
    joules_per_request_ci: tuple[float, float] | None = None
    valid: bool = True
    invalid_reasons: list[Fact] = Field([])
    clients_needed: int | None = Field(
        None, description="client processes that would do; null: those it had did, or that is not known"
    )
    notices: list[Fact] = Field([], description="what to know before believing the figures of a valid cell")
    window_s: tuple[float, float] | None = Field(
        None, description="the time measured, since the cell's start; null: all of it, or several repeats"
    )
    left_out: int = Field(0, description="requests sent outside the window; not among num_requests")
    later_turns: int = Field(0, description="requests that follow another of their session")
    late_turns: int = Field(0, description="of these, sent late because the answer before had not ended")
    waterfall: Waterfall | None = Field(None, description="null where no request succeeded")

    def interval(self, metric: str, statistic: str) -> tuple[float, float] | None:
        """Return the 95 % interval of `value`; None where it has none."""
        if METRICS[metric].is_latency:
            return self.latency(metric).ci.get(statistic)
        interval: tuple[float, float] | None = getattr(self, f"{metric}_ci", None)
        return self.rates_ci.get(metric, interval)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if absent := [name for name in _ALWAYS if name not in self.__pydantic_extra__]:
            raise ValueError(f"{', '.join(absent)} is missing")
        return self

    def latency(self, name: str) -> Distribution:
        """Return the distribution of a latency; an empty one where it was not measured."""
        distribution = self.__pydantic_extra__.get(name)
        return distribution if isinstance(distribution, Distribution) else Distribution()

    def value(self, metric: str, statistic: str) -> float | None:
        """Return a latency's statistic, or a rate, which is its own statistic; None: unknown."""
        record = self.latency(metric) if METRICS[metric].is_latency else self
        value: float | None = getattr(record, statistic, None)
        return value


for metric_name in METRICS.keys() - {metric.name for metric in BUILT_IN}:
    if metric_name in OnlineSummary.model_fields:
        raise UsageError(f"the metric {metric_name} is called like a field of summaries", "rename it")


class SpeculationCount(Strict):
    """Counters of speculative decoding over a cell."""

    steps: float = Field(description="drafts that were verified")
    tokens_per_step: float = Field(description="accepted tokens and the one after them, on average")
    accepted: float | None = Field(None, description="share of drafted tokens that were accepted")
    by_position: list[float] = Field(
        [],
        description="share of steps that accepted the first drafted token, the second, …; empty: unknown",
    )
    source: str = Field(description="the page and the counters")


class Speculation(OfEngine):
    """The same beside the engine, the load and the repeat of its cell."""

    load: Load
    repeat: int
    count: SpeculationCount


#: Shared prefixes are counted in whole blocks of so many tokens, as engines cache them.
PREFIX_BLOCK_TOKENS = 16


class Skipped(OfEngine):
    """An engine that was asked for and is not in the results, and what would bring it in."""

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
        """True if the engine was not there; otherwise a cell of it failed."""
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
        None, description="two-sided p-value of no difference, by Holm over the run"
    )
    comparisons: int = Field(1, description="how many of the run were made at once")
    primary: bool = Field(False, description="whether it is one of those that share four fifths of the 5 %")
    verdict: Verdict = Field("not enough data", description="of `a` against `b`, at 5 % for the whole run")
    spread: float | None = Field(
        None, description="standard deviation of the logarithm from repeat to repeat; null if there was one"
    )
    repeats: tuple[int, int] = Field((1, 1), description="of `a` and of `b`")
    repeats_to_find: dict[str, int | None] = Field(
        {},
        description="repeats of each that find a difference of so much; null: unknown, or too many",
    )


class PrefixCount(Strict):
    """Growth of an engine's counters of its prefix caches during a cell, in prompt tokens."""

    hits: float
    queries: float
    by_cache: dict[str, float] = Field({}, description="hits of each cache that is counted apart")
    source: str = Field(description="the page and the counters")


class PrefixHits(OfEngine):
    """Shares of the prompts of one cell that a prefix cache could have held, and that it did."""

    load: Load
    repeat: int
    block_tokens: int = PREFIX_BLOCK_TOKENS
    prompt_tokens: int = Field(description="of all requests that were sent")
    possible: float = Field(
        description="share that an unbounded cache of whole blocks holds, in order of sending"
    )
    reported: float | None = Field(description="as the engine reports it; null where it does not")
    source: str = Field(description="of what is reported")
    by_cache: dict[str, float] = Field(
        {}, description="share that came from each cache, where the engine's counters tell them apart"
    )
    excess: float = Field(
        0,
        description="growth of counters that are not this cell's, as a multiple of its prompt tokens",
    )
    missed: float = Field(0, description="share that could have been found and was not")


class Recovery(OfEngine):
    """Time that an engine took after a spike of a series of rates until TTFT was as before it."""

    load: Load
    repeat: int
    stage: int = Field(description="place of the spike in the series, from 0")
    before_ms: float = Field(description="TTFT p50 in the stage before")
    limit_ms: float = Field(description="TTFT p90 in the stage before")
    highest_ms: float | None = Field(
        description="of the spike and the stage after it; null: a request failed"
    )
    seconds: float | None = Field(description="from the spike's end; null: not within the stage after it")
    ci: tuple[float, float] | None = Field(
        None, description="by the 95 % interval of the limit, from the last request before it that was slower"
    )
    stage_s: float = Field(description="length of the stage after")


class BatchRow(OfEngine):
    """Throughput of one engine on a batch in one repeat: a row of `offline_results.json`."""

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
        names = cls.model_fields.keys() & OnlineSummary.model_fields.keys()
        return cls(
            **{name: getattr(summary, name) for name in names - {"prompt_tokens", "completion_tokens"}},
            num_prompts=summary.load.prompts,
            batches=batches,
            prompt_tokens=round(summary.prompt_tokens / batches),
            completion_tokens=round(summary.completion_tokens / batches),
            total_s=summary.duration_s / batches,
        )


class OnlineResults(Strict):
    """`online_results.json`, and `offline_results.json` of a run whose load is a batch."""

    schema_version: Literal[1] = SCHEMA_VERSION
    meta: RunInfo
    summaries: list[OnlineSummary]
    answer: list[str] = Field(
        [], exclude_if=lambda sentences: not sentences, description="what the run shows, of `--json` alone"
    )
    results: list[BatchRow] = Field(
        [],
        exclude_if=lambda rows: not rows,
        description="of a batch: the summaries of its cells as rows of throughput",
    )
    comparisons: list[Comparison] = Field([])
    skipped: list[Skipped] = Field([])
    prefixes: list[PrefixHits] = Field([], description="one a cell")
    speculation: list[Speculation] = Field([], description="one a cell whose engine reports it")
    recoveries: list[Recovery] = Field(
        [], exclude_if=lambda each: not each, description="one a spike of each cell"
    )
    ledger: Ledger | None = None
    search: SearchResults | None = Field(None, description="of `bench search`")
    tune: TuneResults | None = Field(None, description="of `bench tune`")
    answers: AnswerChecks | None = None
    accuracy: TaskScores | None = Field(None, description="null where the model has no trained weights")
    reported: dict[int, dict[str, ReportedMean]] = Field({}, description="means by the engines' histograms")
    machines: dict[int, MachineLoad] = Field({}, description="what the machine did during each cell")
    senders: dict[int, list[HostCell]] = Field({}, description="of a cluster: nodes that sent, by cell")
    late_before: dict[int, list[float]] = Field(
        {}, description="of cells measured again: the client's lag in ms each time before"
    )
    nodes: dict[int, str] = Field({}, description="of a cluster: where the engine ran in each cell")
