"""`/metrics`, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from roseinfer.ipc.messages import Load
from roseinfer.server.metrics.counters import BOUNDS, COUNTS, HISTOGRAMS, Counters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(counters: Counters, load: Load) -> bytes:
    """All metrics, over all front ends, as text."""
    registry = CollectorRegistry()
    registry.register(_Metrics(counters, load))
    return generate_latest(registry)


class _Metrics(Collector):
    def __init__(self, counters: Counters, load: Load) -> None:
        self._counters, self._load = counters, load

    def collect(self) -> Iterator[Metric]:
        load, counters = self._load, self._counters
        for name, about, value in (
            ("running", "Requests that run.", load.running),
            ("waiting", "Requests that wait to be admitted.", load.waiting),
            ("kv_usage", "Share of the KV cache's blocks that are in use.", load.kv_usage),
            ("prefix_hit_rate", "Share of prompt tokens that were in the prefix cache.", load.hit_rate),
            ("engine_silent", "1 while the engine has work and gives no sign of life.", counters.silent),
            ("inflight", "Answers in flight in the front ends.", counters.inflight),
        ):
            yield GaugeMetricFamily(f"roseinfer_{name}", about, value)
        about = "Requests that lost their blocks and were computed again."
        yield CounterMetricFamily("roseinfer_preemptions", about, load.preemptions)
        for name, about in COUNTS.items():
            yield CounterMetricFamily(f"roseinfer_{name}", about, counters.count(name))
        for name, about in HISTOGRAMS.items():
            samples, total = counters.histogram(name)
            bounds = [*map(str, BOUNDS.tolist()), "+Inf"]
            buckets = list(zip(bounds, accumulate(samples), strict=True))
            yield HistogramMetricFamily(f"roseinfer_{name}_seconds", about, buckets, total)
