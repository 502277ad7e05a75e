"""The figures of one engine at one load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import ConfigDict, Field, model_validator

from harness.schema.base import Strict
from harness.schema.built_in_metrics import BUILT_IN
from harness.schema.facts import Fact
from harness.schema.fairness import Source, Waterfall
from harness.schema.load import Load
from harness.schema.metrics import LATENCIES, METRICS


class Distribution(Strict):
    """One metric of one summary: milliseconds, numpy's linear percentiles. All None when n is 0."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    n: int = 0
    ci: dict[str, tuple[float, float]] = Field(
        default_factory=dict, description="95 % interval by statistic name"
    )
    withheld: list[str] = Field(
        default_factory=list, description="percentiles of too few samples, which tables do not show"
    )
    source: Source = "measured"


#: What came later than schema 2: summaries of older runs lack it, and so it has no sample there.
_LATER = frozenset({"ttfo_ms", "session_ms"})
_ALWAYS = [metric for metric in BUILT_IN if metric.is_latency and metric.name not in _LATER]


def _list_latencies(schema: dict[str, Any]) -> None:
    """What `bench schema` shows: each latency of the registry as a field of its own."""
    shape = schema.pop("additionalProperties")
    for name in LATENCIES:
        metric = METRICS[name]
        schema["properties"][name] = shape | {"title": metric.label, "description": metric.meaning}
    schema["required"] = [*schema["required"], *(metric.name for metric in _ALWAYS)]


class WithLatencies(Strict):
    """A record with a distribution of each latency, by its name: `record.ttft_ms`, or `record.latency(name)`.

    A latency that another installation has added is kept, and one that was not measured has no sample.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=_list_latencies)
    __pydantic_extra__: dict[str, Distribution]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Distribution: ...

    @model_validator(mode="after")
    def _complete(self) -> Self:
        known = self.__pydantic_extra__
        if absent := [metric.name for metric in _ALWAYS if metric.name not in known]:
            raise ValueError(f"{', '.join(absent)} is missing")
        return self

    def latency(self, name: str) -> Distribution:
        """The distribution of a latency; an empty one where it was not measured."""
        return self.__pydantic_extra__.get(name, Distribution())

    def value(self, metric: str, statistic: str) -> float | None:
        """A latency's statistic, or a rate, which is its own statistic."""
        found = self.latency(metric) if METRICS[metric].is_latency else self
        value: float | None = getattr(found, statistic)
        return value


class OnlineSummary(WithLatencies):
    """One engine at one load: one repeat, or all repeats pooled (`repeat` is null)."""

    engine: str
    variant: str | None = None
    label: str
    load: Load
    repeat: int | None = None
    num_requests: int
    num_success: int
    num_error: int
    errors: dict[str, int] = Field(default_factory=dict)
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
        default_factory=dict, description="95 % interval by the rate's name, of several repeats"
    )
    peak_in_flight: int | None = Field(
        None, description="the most requests sent and not ended at once; null: the raw times are not known"
    )
    prompt_tokens: int
    completion_tokens: int
    chunks: int
    engine_cpu_s: float | None = Field(
        None, description="CPU seconds of the engine's processes in the whole cell; null: not known"
    )
    joules: float | None = Field(
        None, description="by the GPUs' energy counters, or else the processors'; null: none can be read"
    )
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
    invalid_reasons: list[Fact] = Field(default_factory=list)
    clients_needed: int | None = Field(
        None, description="client processes that would do; null: those it had did, or that is not known"
    )
    notices: list[Fact] = Field(
        default_factory=list, description="what to know before believing the figures of a valid cell"
    )
    window_s: tuple[float, float] | None = Field(
        None, description="the time measured, since the cell's start; null: all of it, or several repeats"
    )
    left_out: int = Field(0, description="requests sent outside the window; not among num_requests")
    later_turns: int = Field(0, description="requests that follow another of their session")
    late_turns: int = Field(0, description="of these, sent late because the answer before had not ended")
    waterfall: Waterfall | None = Field(None, description="null where no request succeeded")

    def interval(self, metric: str, statistic: str) -> tuple[float, float] | None:
        """The 95 % interval of `value`; None where it has none."""
        if METRICS[metric].is_latency:
            return self.latency(metric).ci.get(statistic)
        own: tuple[float, float] | None = getattr(self, f"{metric}_ci", None)
        return self.rates_ci.get(metric, own)
