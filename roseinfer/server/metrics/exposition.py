"""Metrics in Prometheus' text format, for `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from roseinfer.info import EngineInfo
from roseinfer.ipc.messages import Load
from roseinfer.server.metrics.counters import BOUNDS, COUNTS, HISTOGRAMS, OF_FRONT_ENDS, Counters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Each gauge: the attribute of a replica that has its value, and its help text.
_GAUGES = {
    "running": ("load.running", "Requests that run."),
    "waiting": ("load.waiting", "Requests that wait to be admitted."),
    "kv_usage": ("load.kv_usage", "Share of the KV cache's blocks that are in use."),
    "prefix_hit_rate": ("load.hit_rate", "Share of prompt tokens that were in the prefix cache."),
    "expert_skew": (
        "load.expert_skew",
        "Tokens of the busiest expert over the mean of its layer's, averaged over layers; 0 without.",
    ),
    "step_cost_error": (
        "load.step_cost_error",
        "Median relative error of the expected durations of the last steps, if steps are composed by these.",
    ),
    "engine_silent": ("counters.silent", "1 while the engine has work and gives no sign of life."),
    "inflight": ("counters.inflight", "Answers in flight in the front ends."),
}
_SPECULATION = "vllm:spec_decode"
#: Counters of speculation: the attribute of DraftCounts that has the value, and the help text.
_DRAFTS = {
    "num_drafts": ("drafts", "How often tokens were drafted for a request."),
    "num_draft_tokens": ("tokens", "Tokens that were drafted."),
    "num_accepted_tokens": ("accepted_tokens", "Drafted tokens that were accepted."),
}
_PREEMPTIONS = "Requests that lost their blocks and were computed again."
_CACHE = "The KV cache, of each replica: its dtype, its blocks, and tokens in a block."


class _Replica(NamedTuple):
    """A replica, or all together; `labels`: the values of the label `replica`, if there are several."""

    labels: list[str]
    counters: Counters
    load: Load


def exposition(counters: Counters, loads: Sequence[Load], info: EngineInfo) -> bytes:
    """Write all metrics, over all front ends, as text. Those of several replicas have a label each."""
    registry = CollectorRegistry()
    registry.register(_Metrics(counters, loads, info))
    return generate_latest(registry)


class _Metrics(Collector):
    def __init__(self, counters: Counters, loads: Sequence[Load], info: EngineInfo) -> None:
        self._info, self._all = info, _Replica([], counters, loads[0])
        self._label, self._replicas = list[str](), [self._all]
        if len(loads) > 1:
            self._label = ["replica"]
            self._replicas = [_Replica([str(n)], counters.of(n), load) for n, load in enumerate(loads)]

    def collect(self) -> Iterator[Metric]:
        tokens, size = self._info.limits.kv_tokens, self._info.config.block_size
        cache = {"dtype": self._info.model.kv_cache_dtype, "blocks": tokens // size, "block_size": size}
        yield InfoMetricFamily("roseinfer_kv_cache", _CACHE, {key: str(cache[key]) for key in cache})
        for name, (attribute, about) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"roseinfer_{name}", about, labels=self._label)
            for replica in self._replicas:
                if (value := attrgetter(attribute)(replica)) is not None:
                    gauge.add_metric(replica.labels, value)
            yield gauge
        for name, about in {"preemptions": _PREEMPTIONS, **COUNTS}.items():
            counter = CounterMetricFamily(f"roseinfer_{name}", about, labels=self._label)
            for replica in self._replicas:
                in_engine = name == "preemptions"
                value = replica.load.preemptions if in_engine else replica.counters.count(name)
                counter.add_metric(replica.labels, value)
            yield counter
        yield from self._drafts()
        for name, about in HISTOGRAMS.items():
            replicas = [self._all] if name in OF_FRONT_ENDS else self._replicas
            labels = [] if name in OF_FRONT_ENDS else self._label
            histogram = HistogramMetricFamily(f"roseinfer_{name}_seconds", about, labels=labels)
            for replica in replicas:
                samples, total = replica.counters.histogram(name)
                bounds = [*map(str, BOUNDS.tolist()), "+Inf"]
                buckets = list(zip(bounds, accumulate(samples), strict=True))
                histogram.add_metric(replica.labels, buckets, total)
            yield histogram

    def _drafts(self) -> Iterator[Metric]:
        """Speculation, in vLLM's names, which dashboards and benchmarks know; nothing without it."""
        counts = [(replica.labels, each) for replica in self._replicas if (each := replica.load.drafts)]
        if not counts:
            return
        for name, (count, about) in _DRAFTS.items():
            counter = CounterMetricFamily(f"{_SPECULATION}_{name}", about, labels=self._label)
            for labels, each in counts:
                counter.add_metric(labels, getattr(each, count))
            yield counter
        about, labels = "Drafted tokens that were accepted, by their position.", [*self._label, "position"]
        counter = CounterMetricFamily(f"{_SPECULATION}_num_accepted_tokens_per_pos", about, labels=labels)
        for labels, each in counts:
            for position, accepted in enumerate(each.accepted):
                counter.add_metric([*labels, str(position)], accepted)
        yield counter
