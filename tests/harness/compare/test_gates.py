"""Gates on values, ratios and failures, and the engines that are compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.compare.compare_runs import compare_runs, judge, outcome
from harness.errors import UsageError
from harness.metrics.contrast import contrast
from harness.metrics.intervals import Estimate
from harness.schema.limits import parse_gate
from harness.schema.load import TraceLoad


@pytest.mark.parametrize(
    ("text", "metric", "statistic", "at_most", "limit", "relative"),
    [
        ("ttft_p99<=+10%", "ttft_ms", "p99", True, 0.1, True),
        ("tpot_mean <= -5%", "tpot_ms", "mean", True, -0.05, True),
        ("output_tok_per_s>=-3%", "output_tok_per_s", "output_tok_per_s", False, -0.03, True),
        ("itl_p50<=+0.5 %", "itl_ms", "p50", True, 0.005, True),
        ("ttft_p99<=200ms", "ttft_ms", "p99", True, 200, False),
        ("e2e_p90<=1.5s", "e2e_ms", "p90", True, 1500, False),
        ("req_per_s>=12.5", "req_per_s", "req_per_s", False, 12.5, False),
        ("error_rate<=1%", "error_rate", "error_rate", True, 0.01, False),
        ("error_rate<=0.02", "error_rate", "error_rate", True, 0.02, False),
    ],
)
def test_a_gate_is_read(text, metric, statistic, at_most, limit, relative):
    [term] = parse_gate(text)
    assert (term.metric, term.statistic, term.at_most, term.relative) == (
        metric,
        statistic,
        at_most,
        relative,
    )
    assert term.limit == pytest.approx(limit)


def test_gates_stand_between_commas():
    assert [term.text for term in parse_gate("ttft_p99<=+10%, output_tok_per_s>=-3%")] == [
        "ttft_p99<=+10%",
        "output_tok_per_s>=-3%",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must have a gate"),
        ("ttft_p99<+10%", "is not a gate"),
        ("ttft_p99<=+10%,", "must have a gate before and after each comma"),
        ("ttft_p99<=ten", "is not a gate"),
        ("ttft_p98<=+10%", "no statistic 'ttft_p98'"),
        ("ttft<=+10%", "no statistic 'ttft'"),
        ("ttft_p99<=10%", "does not say whether more or less"),
        ("ttft_p99<=200", "needs a number in ms or a number in s"),
        ("ttft_p99<=+200ms", "no share of run A"),
        ("req_per_s>=5ms", "needs a plain number"),
        ("error_rate<=+10%", "no share of run A"),
        ("ttft_p99>=-100%", "less than nothing"),
    ],
)
def test_what_is_no_gate_is_refused_with_the_reason(text, why):
    with pytest.raises(UsageError, match=why) as found:
        parse_gate(text)
    assert found.value.hint


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5), st.booleans())
def test_only_an_interval_wholly_on_one_side_decides(bound_1, bound_2, bound, at_most):
    low, high = sorted((bound_1, bound_2))
    [term] = parse_gate("ttft_p99<=+10%" if at_most else "ttft_p99>=+10%")
    found = outcome(term, bound, (low, high))
    inside = [end <= bound if at_most else end >= bound for end in (low, high)]
    if all(inside):
        assert found == "pass"
    elif any(inside):
        assert found == "inconclusive"
    else:
        assert found == "regression"


def test_without_an_interval_nothing_is_known():
    [term] = parse_gate("ttft_p99<=+10%")
    assert outcome(term, 1.1, None) == "inconclusive"


@pytest.mark.parametrize(
    ("of_a", "expected"),
    [([5, 5.1, 5.2], "regression"), ([0.02, 0, 0], "inconclusive"), ([0.01], "inconclusive")],
)
def test_none_is_less_only_where_a_has_some_in_each_of_several_repeats(of_a, expected):
    load, name = TraceLoad(scale=1), "goodput_req_per_s"
    each = np.array(of_a, dtype=float)
    a, b = ({(name, name): Estimate(float(of.mean()), of)} for of in (each, 0 * each))
    [found] = contrast(load, b, a, [(name, name)])
    [gate] = parse_gate("goodput_req_per_s>=-3%")
    no_run: Any = None
    assert judge(gate, ("a", "b"), load, no_run, {}, found).outcome == expected


@pytest.mark.parametrize(
    ("repeats", "expected"),
    [
        ([(2, 200), (3, 200), (2, 200)], "pass"),
        ([(0, 200), (29, 200), (1, 200)], "inconclusive"),  # 5 % of all requests, nearly all of one server
        ([(160, 200), (0, 200), (0, 200)], "inconclusive"),
        ([(60, 200), (70, 200), (65, 200)], "regression"),
        ([(0, 200)], "pass"),
        ([(60, 200)], "regression"),
    ],
)
def test_failures_are_judged_by_how_servers_differ(repeats, expected):
    [term] = parse_gate("error_rate<=10%")
    run: Any = SimpleNamespace(failures=lambda label, load: repeats)
    gated = judge(term, ("a", "b"), TraceLoad(scale=1), run, {}, None)
    assert gated.outcome == expected
    assert ("one repeat shows what one server does" in gated.reason) == (len(repeats) == 1)
    assert ("does not decide it" in gated.reason) == (expected == "inconclusive")


def test_runs_without_a_common_engine_are_compared_only_by_name(make):
    a, b = make("a", engines=("vllm",)), make("b", engines=("roseinfer",), slower=2)
    assert compare_runs(a, b, allowed=["engines"]).outcome == "not comparable"
    results = compare_runs(a, b, parse_gate("tpot_p50<=+10%"), engine_a="vLLM", engine_b="roseinfer")
    assert results.outcome == "regression"
    assert {(difference.engine_a, difference.engine_b) for difference in results.differences} == {
        ("vLLM", "roseinfer")
    }


ONLY_A, ONLY_B = ("vllm", None), (None, "vllm")


def test_one_name_is_looked_up_in_its_own_run_and_then_by_label_in_the_other(make):
    a, b = make("a", engines=("vllm",)), make("b", engines=("roseinfer", "vllm"))
    for named in (ONLY_A, ONLY_B):
        results = compare_runs(a, b, (), *named)
        assert {(d.engine_a, d.engine_b) for d in results.differences} == {("vLLM", "vLLM")}
    with pytest.raises(UsageError, match="a has no engine 'roseinfer'") as raised:
        compare_runs(a, b, engine_b="roseinfer")
    assert raised.value.hint == "name one of it with --engine-a: 'vLLM'"
    with pytest.raises(UsageError, match="a has no engine 'roseinfer'") as raised:
        compare_runs(b, a, engine_a="roseinfer")
    assert raised.value.hint == "name one of it with --engine-b: 'vLLM'"
    with pytest.raises(UsageError, match="b has no engine 'sglang'"):
        compare_runs(a, b, engine_b="sglang")


def test_one_name_in_one_run_is_compared_with_every_other_engine(make):
    run = make("a", engines=("vllm", "roseinfer", "sglang"))
    pairs = [
        {(d.engine_a, d.engine_b) for d in compare_runs(run, run, (), *named).differences}
        for named in (ONLY_A, ONLY_B)
    ]
    assert pairs == [{("vLLM", "roseinfer"), ("vLLM", "SGLang")}, {("roseinfer", "vLLM"), ("SGLang", "vLLM")}]


def test_two_engines_of_one_run(make):
    run = make("a", engines=("vllm", "roseinfer"), scales=(1.0, 2.0))
    results = compare_runs(run, run, engine_a="vllm", engine_b="roseinfer")
    assert {difference.load.value for difference in results.differences} == {1.0, 2.0}
    assert results.comparisons == 26
    every = compare_runs(run, run)
    assert {(d.engine_a, d.engine_b) for d in every.differences} == {("vLLM", "roseinfer")}
    with pytest.raises(UsageError, match="has no engine 'sglang'"):
        compare_runs(run, run, engine_a="vllm", engine_b="sglang")
    with pytest.raises(UsageError, match="A and B are both 'vLLM' of"):
        compare_runs(run, run, engine_a="vllm", engine_b="vllm")
    with pytest.raises(UsageError, match="which has one engine"):
        compare_runs(*[make("one", engines=("vllm",))] * 2)
