"""Histograms of real pages: what was observed between two moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.prometheus import Histogram, histograms, mean_between, parse_samples

# SGLang 0.5.23, shortened.
PAGE = """\
# HELP sglang:queue_time_seconds Histogram of queueing time in seconds.
# TYPE sglang:queue_time_seconds histogram
sglang:queue_time_seconds_sum{engine_type="unified",model_name="m",tp_rank="0"} 0.25
sglang:queue_time_seconds_bucket{engine_type="unified",le="0.0",model_name="m",tp_rank="0"} 0.0
sglang:queue_time_seconds_bucket{engine_type="unified",le="+Inf",model_name="m",tp_rank="0"} 10.0
sglang:queue_time_seconds_count{engine_type="unified",model_name="m",tp_rank="0"} 10.0
# HELP sglang:per_stage_req_latency_seconds The latency of each stage of requests.
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
held = st.builds(Histogram, sum_s=st.floats(0, 100), count=st.integers(0, 100).map(float))


def test_series_are_chosen_by_their_labels() -> None:
    assert histograms(parse_samples(PAGE), WANTED) == {
        "queue_wait_ms": Histogram(0.25, 10),
        "prefill_ms": Histogram(1.5, 6),
    }
    assert histograms(parse_samples(PAGE), {"prefill_ms": "sglang:per_stage_req_latency_seconds"}) == {
        "prefill_ms": Histogram(10.5, 12)
    }
    assert histograms(parse_samples(PAGE), {"prefill_ms": "vllm:request_prefill_time_seconds"}) == {}


@pytest.mark.parametrize("page", ["", "<html>not found</html>", 'x{a="b", ="d"} 1.0'])
def test_a_page_without_histograms_tells_nothing(page: str) -> None:
    assert histograms(parse_samples(page), WANTED) == {}


@given(before=held, more=held)
def test_the_mean_is_of_what_came_in_mean_between(before: Histogram, more: Histogram) -> None:
    after = Histogram(before.sum_s + more.sum_s, before.count + more.count)
    found = mean_between({"queue_wait_ms": before}, {"queue_wait_ms": after})
    if not more.count:
        assert found == {}
        return
    assert found["queue_wait_ms"].n == more.count
    assert found["queue_wait_ms"].mean_ms * more.count == pytest.approx(1e3 * more.sum_s, abs=1e-6)


def test_a_histogram_that_appears_with_its_first_request_counts_from_nothing() -> None:
    assert mean_between({}, histograms(parse_samples(PAGE), WANTED))[
        "queue_wait_ms"
    ].mean_ms == pytest.approx(25)
