"""The registry of metrics, from which results, definitions, glossary, gates, tables and figures derive.

It holds this project's metrics, in the order in which they are shown, and those that installed packages add
(`metric.py`).
"""

from __future__ import annotations

from functools import partial

from harness.errors import UsageError
from harness.plugins import describe, find_plugins, load_plugin
from harness.schema.metric import MS, NO_TIME_S, Counts, Fraction, Metric, Use

_SHOWN: frozenset[Use] = frozenset({"tables", "overview", "compared", "gated", "slo"})
_HEADLINE: frozenset[Use] = _SHOWN | {"headline"}


def _each(spent: float | None, count: int) -> Fraction:
    """Return a cost of each of `count` tokens or requests; None where it is unknown, or there are none."""
    return None if spent is None or not count else (spent, count)


def _offered(counts: Counts) -> Fraction:
    """Return arrivals a second by the schedule; requests over the duration where all arrive at once."""
    if counts.arrival_s > NO_TIME_S:
        return counts.arrival_gaps, counts.arrival_s
    return counts.arrivals, counts.seconds


#: Beside others, of a whole session or of the first tool call in an answer.
_OfSession = partial(Metric, by_session=True, like="session_ms", uses=frozenset({"tables", "gated"}))
_OfCall = partial(Metric, like="ttft_ms", uses=frozenset({"tables", "gated"}))
#: One number of a cell: a cost of it, a rate, or a rate that is higher under a heavier load.
_Cost = partial(Metric, sample="cell")
_Rate = partial(Metric, sample="cell", lower_is_better=False)
_Throughput = partial(_Rate, set_by_load=True)

BUILT_IN = (
    Metric(
        "ttft_ms",
        "TTFT",
        "time to first token",
        "t_first − t_sent",
        "From the last byte of the request written to the first chunk that carries a token. Empty "
        "chunks and chunks with only a role do not count.",
        lambda t: (t.first - t.sent) * MS,
        uses=_HEADLINE,
    ),
    Metric(
        "ttfo_ms",
        "TTFO",
        "time to first output token",
        "t_answer − t_sent",
        "From the last byte of the request written to the first chunk of the answer itself (text, a tool "
        "call, a refusal), after any reasoning. Without reasoning it is TTFT; an answer of nothing but "
        "reasoning has none.",
        lambda t: (t.answer - t.sent) * MS,
        uses=frozenset({"tables", "gated", "slo"}),
        like="ttft_ms",
    ),
    Metric(
        "tpot_ms",
        "TPOT",
        "time per output token",
        "(t_last − t_first) / (N − k₁)",
        "The mean time of an output token after the first chunk, whose k₁ tokens all arrive at t_first. "
        "None where all tokens came in one chunk.",
        lambda t: (t.last - t.first) * MS / t.steps,
        uses=_HEADLINE,
    ),
    Metric(
        "itl_ms",
        "ITL",
        "inter-token latency",
        "g / k, k times",
        "Per token: a chunk of k tokens after a gap g counts as k samples of g/k, pooled over "
        "requests. The first chunk of a request ends no gap.",
        lambda t: t.gap_ms / t.gap_tokens,
        sample="token",
        uses=_SHOWN,
    ),
    Metric(
        "e2e_ms",
        "E2E",
        "end-to-end latency",
        "t_last − t_sent",
        "From the last byte of the request written to the last chunk that carries a token.",
        lambda t: (t.last - t.sent) * MS,
        uses=_SHOWN,
    ),
    Metric(
        "icl_ms",
        "ICL",
        "inter-chunk latency",
        "g",
        "Per chunk: the gaps themselves, however many tokens a chunk carries. What a stutter looks like.",
        lambda t: t.gap_ms,
        sample="chunk",
        like="itl_ms",
        uses=frozenset({"tables", "gated", "slo"}),
    ),
    Metric(
        "submit_lag_ms",
        "Submit lag",
        "submit lag",
        "t_sent − t_sched − time to connect",
        "How late the client sent a request, but for the wait for a new connection. It is a property of the "
        "client, not of the engine: a cell whose p99 (of fewer than 100 requests: whose second highest "
        "value) exceeds the larger of 1 ms and 5 % of its TTFT p50 is invalid.",
        lambda t: (t.sent - t.sched - t.connecting) * MS,
    ),
    Metric(
        "ttft_from_schedule_ms",
        "TTFT from schedule",
        "time to first token, from the schedule",
        "t_first − t_sched",
        "TTFT counted from when the schedule wanted the request sent, so that a late client hides nothing.",
        lambda t: (t.first - t.sched) * MS,
    ),
    Metric(
        "e2e_from_schedule_ms",
        "E2E from schedule",
        "end-to-end latency, from the schedule",
        "t_last − t_sched",
        "E2E counted from when the schedule wanted the request sent.",
        lambda t: (t.last - t.sched) * MS,
    ),
    Metric(
        "session_ms",
        "Session",
        "whole session",
        "t_last of the last turn − t_sent of the first",
        "How long a conversation or an agent's job took as a whole, time to think included, for sessions "
        "without a failed turn.",
        lambda t: (t.last - t.session_start) * MS,
        by_session=True,
        uses=frozenset({"tables", "gated"}),
    ),
    _OfSession(
        "session_model_ms",
        "Session in model",
        "time in the model, of a session",
        "Σ (t_end − t_sent) along the critical path",
        "Of the turns that led to the session's end, each the last of those that the next one waited for: "
        "the time in which they were answered.",
        lambda t: t.session_model_s * MS,
    ),
    _OfSession(
        "session_tools_ms",
        "Session in tools",
        "time in tools, of a session",
        "Σ (t_sched − t_end before) along the critical path",
        "The time between these turns, in which tools ran or a person thought, as recorded; with live "
        "answers also the time to read them.",
        lambda t: t.session_tools_s * MS,
    ),
    _OfSession(
        "session_queue_ms",
        "Session in queue",
        "time in the queue, of a session",
        "Σ queue wait along the critical path",
        "The part of the time in the model in which these turns waited for their prefill, where the engine "
        "reports that of each request.",
        lambda t: t.session_queue_s * MS,
    ),
    _OfCall(
        "ttfc_ms",
        "TTFC",
        "time to first tool call",
        "t_call − t_sent",
        "From the last byte of the request written to the first chunk with a part of a tool call.",
        lambda t: (t.call - t.sent) * MS,
    ),
    _OfCall(
        "ttca_ms",
        "TTCA",
        "time to complete arguments",
        "t_called − t_sent",
        "To the last chunk with a part of the first tool call: then the tool can run.",
        lambda t: (t.called - t.sent) * MS,
    ),
    Metric(
        "queue_wait_ms",
        "Queue wait",
        "queue wait",
        "from the engine",
        "How long a request waited before its prefill began, where the engine reports it.",
        lambda t: t.queue_wait_ms,
        by_engine=True,
    ),
    Metric(
        "prefill_ms",
        "Prefill",
        "prefill",
        "from the engine",
        "How long the prefill of a request took, where the engine reports it.",
        lambda t: t.prefill_ms,
        by_engine=True,
    ),
    _Rate(
        "offered_req_per_s",
        "offered req/s",
        "offered rate",
        "(requests − 1) / (last t_sched − first t_sched)",
        "What the schedule asks for. The achieved rate is a little lower, as the last answers take "
        "their time, and much lower in a short cell. Whether an engine fell behind, a notice says.",
        unit="req/s",
        fraction=_offered,
        has_interval=False,
        uses=frozenset({"tables"}),
    ),
    _Throughput(
        "req_per_s",
        "req/s",
        "achieved rate",
        "successes / duration",
        "Successful requests a second, from the first scheduled arrival to the end of the last stream.",
        unit="req/s",
        fraction=lambda c: (c.ended, c.seconds),
        uses=frozenset({"tables", "gated", "offline"}),
    ),
    _Throughput(
        "output_tok_per_s",
        "output tok/s",
        "output token rate",
        "output tokens / duration",
        "Tokens generated by successful requests a second. Below saturation the load sets it, not the "
        "engine.",
        unit="tok/s",
        fraction=lambda c: (c.output_tokens, c.seconds),
        uses=frozenset({"headline", "tables", "compared", "gated", "offline", "bars"}),
    ),
    _Throughput(
        "total_tok_per_s",
        "total tok/s",
        "total token rate",
        "(prompt tokens + output tokens) / duration",
        "Prompt and output tokens of successful requests a second.",
        unit="tok/s",
        fraction=lambda c: (c.prompt_tokens + c.output_tokens, c.seconds),
        uses=frozenset({"tables", "gated", "offline"}),
    ),
    _Rate(
        "output_tok_per_s_per_gpu",
        "tok/s/GPU",
        "output token rate of a GPU",
        "output tokens / duration / GPUs",
        "The output token rate divided by the GPUs that the engine computes on: tensor parallel size × data "
        "parallel size. Shown where an engine has more than one.",
        unit="tok/s",
        fraction=lambda c: None if c.gpu_s is None else (c.output_tokens, c.gpu_s),
        uses=frozenset({"tables", "offline"}),
        like="output_tok_per_s",
    ),
    _Rate(
        "goodput_req_per_s",
        "goodput req/s",
        "goodput",
        "successes within the service level / duration",
        "Successful requests a second that meet every limit of the service level. A limit on ITL "
        "holds for every token of the request.",
        unit="req/s",
        fraction=lambda c: None if c.good is None else (c.good, c.seconds),
        needs_slo=True,
        uses=frozenset({"tables", "gated"}),
    ),
    _Cost(
        "cpu_ms_per_output_token",
        "CPU ms/token",
        "CPU time of an output token",
        "CPU seconds of the engine's processes / output tokens",
        "What all processes of the engine spent in the whole cell, on HTTP and waiting awake too.",
        unit="ms/token",
        fraction=lambda c: _each(c.engine_cpu_s and c.engine_cpu_s * MS, c.cell_tokens),
        has_interval=False,
    ),
    _Cost(
        "joules_per_output_token",
        "J/token",
        "energy of an output token",
        "joules / output tokens",
        "By the energy counters of the GPUs or, where there is none, of the processors (RAPL), the whole "
        "cell; on shared processors the client's work is in it too.",
        unit="J/token",
        fraction=lambda c: _each(c.joules, c.cell_tokens),
    ),
    _Cost(
        "joules_above_idle_per_output_token",
        "J/token above idle",
        "energy of an output token above idle",
        "(joules − idle watts × seconds) / output tokens",
        "The same without what the machine took in two seconds before the engine was started, times the "
        "cell's length.",
        unit="J/token",
        fraction=lambda c: _each(c.joules_above_idle, c.cell_tokens),
    ),
    _Cost(
        "joules_per_request",
        "J/request",
        "energy of a request",
        "joules / successes",
        "The energy of the whole cell for each successful request.",
        unit="J/request",
        fraction=lambda c: _each(c.joules, c.cell_successes),
    ),
    _Rate(
        "accuracy",
        "accuracy",
        "accuracy of the task",
        "right items / items",
        "Share of the generated items that the engine answers rightly, on the timed server with its timed "
        "settings; the interval is Wilson's.",
        unit="",
    ),
    Metric(
        "total_s",
        "total latency (s)",
        "total latency",
        "last answer complete − batch handed over",
        "How long the whole batch took.",
        unit="s",
        sample="batch",
        uses=frozenset({"offline", "bars"}),
    ),
)

GROUP = "rosebench.metrics"

#: Percentiles of a sample that are reported.
PERCENTILES = (50, 90, 95, 99)
#: Percentiles by which engines are compared.
COMPARED_PERCENTILES = (50, 90, 99)
#: Statistics of a sample that are reported and can be gated.
STATISTICS = ("mean", *(f"p{q}" for q in PERCENTILES))


def add(metrics: dict[str, Metric], metric: object, origin: str) -> None:
    """Add a metric of another package to `metrics`.

    Raises:
        UsageError: it is neither a latency with a function over raw times nor a number of a cell with a
            fraction of counts, or its name is taken.
    """
    hint = "correct or uninstall its package"
    if not isinstance(metric, Metric):
        raise UsageError(f"{origin} is not a harness.schema.metric.Metric", hint)
    if metric.name in metrics:
        raise UsageError(f"{origin} is called {metric.name}, as another metric is", hint)
    is_latency = metric.of is not None and metric.unit == "ms" and metric.name.endswith("_ms")
    is_rate = metric.fraction is not None and metric.sample == "cell" and not metric.name.endswith("_ms")
    if metric.is_latency and not is_latency:
        kind = "a latency in ms, its name ending in _ms, with a function over raw times"
        raise UsageError(f"{origin} ({metric.name}) is not {kind}", hint)
    if not metric.is_latency and not is_rate:
        kind = "one number of each cell, its name not ending in _ms, with a fraction of counts"
        raise UsageError(f"{origin} ({metric.name}) is not {kind}", hint)
    metrics[metric.name] = metric


def _metrics() -> dict[str, Metric]:
    metrics = {metric.name: metric for metric in BUILT_IN}
    for point in find_plugins(GROUP).values():
        add(metrics, load_plugin(point), describe(point))
    return metrics


#: Every metric by its name in the results.
METRICS = _metrics()

#: Metrics that have a distribution in every summary.
LATENCIES = tuple(name for name, metric in METRICS.items() if metric.is_latency)


def statistic_name(metric: str, statistic: str) -> str:
    """Name a statistic: `TTFT p50`; of a rate `output tok/s`."""
    label = METRICS[metric].label
    return label if statistic == metric else f"{label} {statistic}"


def latencies(use: Use) -> tuple[str, ...]:
    """Return the names of the latencies with that use."""
    return tuple(name for name in LATENCIES if use in METRICS[name].uses)


def rates(use: Use) -> tuple[str, ...]:
    """Return the names of the metrics with that use that are one number and not a sample."""
    return tuple(name for name, metric in METRICS.items() if use in metric.uses and not metric.is_latency)
