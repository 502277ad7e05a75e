"""Metrics in Prometheus' text format, for `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

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

#: Name, help text, and the function that gives the value.
_Value = tuple[str, str, Callable[[Counters, Load], float]]
_GAUGES: tuple[_Value, ...] = (
    ("running", "Requests that run.", lambda counters, load: load.running),
    ("waiting", "Requests that wait to be admitted.", lambda counters, load: load.waiting),
    ("kv_usage", "Share of the KV cache's blocks that are in use.", lambda counters, load: load.kv_usage),
    (
        "prefix_hit_rate",
        "Share of prompt tokens that were in the prefix cache.",
        lambda counters, load: load.hit_rate,
    ),
    (
        "engine_silent",
        "1 while the engine has work and gives no sign of life.",
        lambda counters, load: counters.silent,
    ),
    ("inflight", "Answers in flight in the front ends.", lambda counters, load: counters.inflight),
)


def _count(name: str, counters: Counters, load: Load) -> float:
    return counters.count(name)


_COUNTERS: tuple[_Value, ...] = (
    (
        "preemptions",
        "Requests that lost their blocks and were computed again.",
        lambda counters, load: load.preemptions,
    ),
    *((name, about, partial(_count, name)) for name, about in COUNTS.items()),
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


#: The values of the label `replica`, if there are several, and what they label.
_Replica = tuple[list[str], Counters, Load]


def exposition(counters: Counters, loads: Sequence[Load], info: EngineInfo) -> bytes:
    """All metrics, over all front ends, as text. Those of several replicas have a label each."""
    registry = CollectorRegistry()
    registry.register(_Metrics(counters, loads, info))
    return generate_latest(registry)


class _Metrics(Collector):
    def __init__(self, counters: Counters, loads: Sequence[Load], info: EngineInfo) -> None:
        self._info = info
        alone = len(loads) == 1
        self._all, self._label = counters, [] if alone else ["replica"]
        self._replicas: list[_Replica] = (
            [([], counters, loads[0])]
            if alone
            else [([str(index)], counters.of(index), load) for index, load in enumerate(loads)]
        )

    def collect(self) -> Iterator[Metric]:
        cache, size = self._info.limits.kv_tokens, self._info.config.block_size
        yield InfoMetricFamily(
            "roseinfer_kv_cache",
            "The KV cache, of each replica: its dtype, its blocks, and tokens in a block.",
            {
                "dtype": self._info.model.kv_cache_dtype,
                "blocks": str(cache // size),
                "block_size": str(size),
            },
        )
        for name, about, value in _GAUGES:
            gauge = GaugeMetricFamily(f"roseinfer_{name}", about, labels=self._label)
            for label, counters, load in self._replicas:
                gauge.add_metric(label, value(counters, load))
            yield gauge
        for name, about, count in _COUNTERS:
            counter = CounterMetricFamily(f"roseinfer_{name}", about, labels=self._label)
            for label, counters, load in self._replicas:
                counter.add_metric(label, count(counters, load))
            yield counter
        for name, about in HISTOGRAMS.items():
            of_front_ends = name in OF_FRONT_ENDS
            labels = [] if of_front_ends else self._label
            histogram = HistogramMetricFamily(f"roseinfer_{name}_seconds", about, labels=labels)
            whole: list[_Replica] = [([], self._all, self._replicas[0][2])]
            for label, counters, _ in whole if of_front_ends else self._replicas:
                samples, total = counters.histogram(name)
                bounds = [*map(str, BOUNDS.tolist()), "+Inf"]
                histogram.add_metric(label, list(zip(bounds, accumulate(samples), strict=True)), total)
            yield histogram
