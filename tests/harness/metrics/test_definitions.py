"""Times to metrics, one edge at a time."""

from dataclasses import replace

import numpy as np
import pytest

from harness.errors import UsageError
from harness.metrics.definitions import RequestTimes, chunk_gaps, request_keys, request_metrics, values_of
from harness.metrics.samples import split
from harness.schema.metrics import METRICS
from tests.harness.metrics.conftest import build


def only_row(**row):
    requests, chunks = build([row])
    return request_metrics(requests, chunk_gaps(chunks).of(request_keys(requests))).iloc[0]


def test_each_metric_of_one_request():
    found = only_row(t_sched=1.0, t_sent=1.002, chunks=[(1.1, 1), (1.15, 2), (1.3, 1)])
    assert found["ttft_ms"] == pytest.approx(98)
    assert found["tpot_ms"] == pytest.approx(200 / 3)
    assert found["e2e_ms"] == pytest.approx(298)
    assert found["submit_lag_ms"] == pytest.approx(2)
    assert found["ttft_from_schedule_ms"] == pytest.approx(100)
    assert found["e2e_from_schedule_ms"] == pytest.approx(300)
    assert np.isnan(found["queue_wait_ms"])


def test_one_token_has_no_tpot_and_no_itl():
    requests, chunks = build([{"chunks": [(0.5, 1)]}])
    (group,) = split(requests, chunks)
    assert group.sample("ttft_ms").values == pytest.approx([500])
    assert not group.sample("tpot_ms").values.size
    assert not group.sample("itl_ms").values.size


def test_all_tokens_in_one_chunk_have_no_tpot():
    found = only_row(chunks=[(0.5, 8)])
    assert np.isnan(found["tpot_ms"])


def test_a_merged_chunk_counts_once_a_token_in_itl_and_once_in_icl():
    requests, chunks = build([{"chunks": [(1.0, 3), (1.2, 4), (1.3, 1)]}])
    (group,) = split(requests, chunks)
    itl = group.sample("itl_ms")
    assert np.repeat(itl.values, itl.weights) == pytest.approx([50, 50, 50, 50, 100])
    assert group.sample("icl_ms").values == pytest.approx([200, 100])


def test_gaps_never_cross_requests_or_cells_in_any_order_of_rows():
    rows = [
        {"cell": cell, "repeat": cell, "request": request, "chunks": [(0.1 * request + 0.5, 1), (2.0, 1)]}
        for cell in (0, 1)
        for request in (0, 1)
    ]
    requests, chunks = build(rows)
    shuffled = chunks.sample(frac=1, random_state=3)
    for table in (chunks, shuffled):
        gaps = chunk_gaps(table)
        assert gaps.gap_ms == pytest.approx([1500, 1400, 1500, 1400])
        assert list(gaps.request) == sorted(request_keys(requests))


def test_chunks_of_a_failed_request_are_left_out():
    requests, chunks = build(
        [
            {"chunks": [(0.1, 1), (0.2, 1)]},
            {"chunks": [(0.1, 1), (9.0, 1)], "error": "truncated"},
            {"chunks": [(0.1, 1), (0.4, 1)]},
        ]
    )
    (group,) = split(requests, chunks)
    itl = group.sample("itl_ms")
    assert itl.values == pytest.approx([100, 300])
    assert list(itl.request) == [0, 1]


def test_a_metric_has_one_value_a_request():
    requests, chunks = build([{"chunks": [(0.5, 1)]}, {"chunks": [(0.5, 1)]}])
    times = RequestTimes(requests, chunk_gaps(chunks).of(request_keys(requests)))
    metric = replace(METRICS["ttft_ms"], name="odd_ms", of=lambda times: times.first[:1])
    with pytest.raises(UsageError, match=r"odd_ms has values of shape \(1,\) instead of \(2,\)"):
        values_of(metric, times)
