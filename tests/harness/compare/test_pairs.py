"""Engines of two runs, or of one run with itself, that are compared by the names that are given."""

from __future__ import annotations

import pytest

from harness.compare.compare_runs import compare_runs
from harness.errors import UsageError
from harness.schema.limits import parse_gate


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
