"""Histograms of real pages: what was observed between two moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.samples import Sample

from harness.engines.prometheus import histogram_means, parse_samples, prefix_count
from harness.engines.registry import ENGINES

# SGLang 0.5.23, shortened.
PAGE = """\
# TYPE sglang:queue_time_seconds histogram
sglang:queue_time_seconds_sum{engine_type="unified",model_name="m",tp_rank="0"} 0.25
sglang:queue_time_seconds_bucket{engine_type="unified",le="+Inf",model_name="m",tp_rank="0"} 10.0
sglang:queue_time_seconds_count{engine_type="unified",model_name="m",tp_rank="0"} 10.0
# TYPE sglang:per_stage_req_latency_seconds histogram
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="prefill_forward"} 1.5
sglang:per_stage_req_latency_seconds_bucket{le="+Inf",model_name="m",stage="prefill_forward"} 6.0
sglang:per_stage_req_latency_seconds_count{model_name="m",stage="prefill_forward"} 6.0
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="request_process"} 9.0
sglang:per_stage_req_latency_seconds_bucket{le="+Inf",model_name="m",stage="request_process"} 6.0
sglang:per_stage_req_latency_seconds_count{model_name="m",stage="request_process"} 6.0
"""
WANTED = {
    "queue_wait_ms": "sglang:queue_time_seconds",
    "prefill_ms": 'sglang:per_stage_req_latency_seconds{stage="prefill_forward"}',
}


def counted(sum_s: float, count: int) -> str:
    """Write a page with one histogram."""
    name = "sglang:queue_time_seconds"
    return f"# TYPE {name} histogram\n{name}_sum {sum_s}\n{name}_count {count}\n"


def test_series_are_chosen_by_their_labels() -> None:
    every = {"prefill_ms": "sglang:per_stage_req_latency_seconds"}
    page = parse_samples(PAGE)
    means = histogram_means([], page, WANTED) | {"every": histogram_means([], page, every)["prefill_ms"]}
    assert {name: (mean.mean_ms, mean.n) for name, mean in means.items()} == {
        "queue_wait_ms": (25, 10), "prefill_ms": (250, 6), "every": (875, 12),
    }  # fmt: skip
    assert histogram_means([], page, {"prefill_ms": "vllm:request_prefill_time_seconds"}) == {}


@pytest.mark.parametrize("page", ["", "<html>not found</html>", 'x{a="b", ="d"} 1.0'])
def test_a_page_without_histograms_tells_nothing(page: str) -> None:
    assert histogram_means([], parse_samples(page), WANTED) == {}


@given(st.floats(0, 100), st.integers(0, 100), st.floats(0, 100), st.integers(0, 100))
def test_the_mean_is_of_what_was_observed_in_between(sum_s, count, more_s, more):
    before = parse_samples(counted(sum_s, count))
    means = histogram_means(before, parse_samples(counted(sum_s + more_s, count + more)), WANTED)
    if not more:
        assert means == {}
        return
    assert means["queue_wait_ms"].n == more
    assert means["queue_wait_ms"].mean_ms * more == pytest.approx(1e3 * more_s, abs=1e-6)


HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
COUNTERS = {"prefix_hits": HITS, "prefix_queries": QUERIES}


def prefix_samples(hits: float, queries: float) -> list[Sample]:
    return [Sample(HITS, {}, hits), Sample(QUERIES, {}, queries)]


@given(st.lists(st.floats(), min_size=4, max_size=4))
def test_what_rose_is_a_count_or_unknown(numbers: list[float]) -> None:
    """A server may be started again in a cell, or write what is no number."""
    found = prefix_count(COUNTERS, {}, prefix_samples(*numbers[:2]), prefix_samples(*numbers[2:]))
    assert found is None or (found.hits >= 0 and found.queries >= 0)


def test_counters_that_are_not_there() -> None:
    before, after = prefix_samples(32, 100), prefix_samples(64, 200)
    found = prefix_count(COUNTERS, {}, before, after)
    assert found is not None and (found.hits, found.queries) == (32, 100)
    assert prefix_count(COUNTERS | {"prefix_hits": "vllm:prefix_cache_hits"}, {}, before, after) is None
    assert prefix_count(COUNTERS, {}, before, []) is None


CACHED = "vllm:prompt_tokens_cached_by_source_total"


@pytest.mark.parametrize(
    ("engine", "before", "after", "by_cache"),
    [
        (
            "vllm",
            f'{QUERIES} 72\n{HITS} 32\n{CACHED}{{source="device"}} 32\n{CACHED}{{source="host"}} 12\n',
            f'{QUERIES} 172\n{HITS} 52\n{CACHED}{{source="device"}} 52\n{CACHED}{{source="host"}} 42\n',
            {"device": 20, "host": 30, "disk": 0, "p2p": 0, "elsewhere": 0},
        ),
        (  # a counter of its begins with the first hit
            "sglang",
            'sglang:prompt_tokens_total 72\nsglang:cached_tokens_total{cache_source="device"} 5\n',
            'sglang:prompt_tokens_total 172\nsglang:cached_tokens_total{cache_source="device"} 25\n'
            'sglang:cached_tokens_total{cache_source="host"} 30\n',
            {"device": 20, "host": 30, "storage": 0},
        ),
    ],
)
def test_caches_of_the_device_and_beyond_it(
    engine: str, before: str, after: str, by_cache: dict[str, float]
) -> None:
    adapter = ENGINES[engine]
    found = prefix_count(
        adapter.server_series, adapter.cache_hits, parse_samples(before), parse_samples(after)
    )
    assert found is not None
    assert (found.hits, found.queries, found.by_cache) == (50, 100, by_cache)
