"""The registry of metrics: complete, explained alike everywhere, and closed to what is no latency."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.schema.metrics import BUILT_IN, LATENCIES, METRICS, add, latencies, rates

REFERENCE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_latency_has_a_function_and_a_unit_of_ms():
    assert all(METRICS[name].of is not None and METRICS[name].unit == "ms" for name in LATENCIES)


def test_the_reference_and_the_registry_say_the_same():
    for metric in BUILT_IN:
        assert f"`{metric.name}`" in REFERENCE
        assert metric.formula in REFERENCE
        assert metric.meaning in REFERENCE, metric.name


def test_uses_are_in_the_order_of_the_registry():
    assert latencies("tables") == (
        "ttft_ms",
        "ttfo_ms",
        "tpot_ms",
        "itl_ms",
        "e2e_ms",
        "icl_ms",
        "session_ms",
        "session_model_ms",
        "session_tools_ms",
        "session_queue_ms",
        "ttfc_ms",
        "ttca_ms",
    )
    assert latencies("headline") == ("ttft_ms", "tpot_ms")
    assert rates("gated") == ("req_per_s", "output_tok_per_s", "total_tok_per_s", "goodput_req_per_s")
    assert rates("offline") == (
        "req_per_s",
        "output_tok_per_s",
        "total_tok_per_s",
        "output_tok_per_s_per_gpu",
        "total_s",
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "as another metric is"),
        ({"name": "ttst"}, "is not a latency in ms"),
        ({"name": "ttst_ms", "unit": "s"}, "is not a latency in ms"),
        ({"name": "ttst_ms", "of": None}, "is not a latency in ms"),
        ({"name": "ttst_ms", "sample": "cell"}, "is not one number of each cell"),
        ({"name": "waste", "sample": "cell", "unit": "J"}, "is not one number of each cell"),
    ],
)
def test_what_another_package_adds_is_checked(changes, reason):
    with pytest.raises(UsageError, match=reason):
        add(dict(METRICS), replace(METRICS["ttft_ms"], **changes), "the metric ttst (ttst:METRIC)")


def test_what_is_no_metric_is_refused():
    with pytest.raises(UsageError, match="is not a harness"):
        add({}, "ttst_ms", "the metric ttst (ttst:METRIC)")
