"""Two runs of `bench offline`, from their folders to the exit code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner, Result

from harness.cli.commands import app
from harness.compare.compare_runs import compare_runs
from harness.errors import UsageError
from harness.runs.reader import load_run
from harness.schema.compare_results import CompareResults
from harness.schema.limits import parse_gate
from harness.schema.load import Batch
from tests.harness.measured import made_once
from tests.harness.offline_runs import IN_PROCESS, SERVED, write_run

from .conftest import Make

#: Prompts that move the rate by far more than the engine's change, which is 4 %.
BEFORE = [100.0, 131.0, 82.0, 110.0]
AFTER = [96.2, 125.5, 79.0, 105.1]
GATE = "output_tok_per_s>=-3%"


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """write(name, rates, …) returns the folder of a run, which no test changes."""
    return made_once(tmp_path_factory, write_run)


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_repeats_of_the_same_prompts_are_compared_one_by_one(write: Make) -> None:
    a, b = write("a", {SERVED: BEFORE}), write("b", {SERVED: AFTER})
    results = compare_runs(a, b)
    [found] = results.differences
    assert (found.load, found.metric, found.paired) == (Batch(prompts=8), "output_tok_per_s", True)
    paired = stats.ttest_rel(np.log(AFTER), np.log(BEFORE))
    assert (found.verdict, results.comparisons) == ("worse", 1)
    assert found.adjusted_p == pytest.approx(paired.pvalue)
    assert found.ratio_ci == pytest.approx(tuple(np.exp(paired.confidence_interval(0.95))))
    assert found.ratio == pytest.approx(sum(AFTER) / sum(BEFORE))
    assert found.difference == pytest.approx(np.mean(AFTER) - np.mean(BEFORE))
    assert "so they are compared repeat by repeat. Whatever else differs" in bench(a, b).stdout


def test_other_prompts_are_allowed_only_by_name_and_are_no_pairs(write: Make) -> None:
    a, b = write("a", {SERVED: BEFORE}), write("b", {SERVED: AFTER}, seed=7)
    assert [obstacle.reason for obstacle in compare_runs(a, b).obstacles] == [
        "prompts differ: seed: 0 in A, 7 in B"
    ]
    [found] = compare_runs(a, b, allowed=["prompts"]).differences
    welch = stats.ttest_ind(np.log(AFTER), np.log(BEFORE), equal_var=False)
    assert (found.verdict, found.paired) == ("no difference", False)
    assert found.adjusted_p == pytest.approx(welch.pvalue)
    assert "A and B have other prompts" in bench(a, b, "--allow-different", "prompts").stdout


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model", {"model": "other"}),
        ("dtype", {"dtype": "fp32"}),
        ("hardware", {"environment": {"cpu": {"model": "another", "usable_cores": 2}}}),
        ("lengths", {"input_len": "uniform:1:64"}),
        ("lengths", {"output_len": 8}),
        ("lengths", {"ignore_eos": False}),
        ("cpu-threads", {"cpu_threads": 2}),
        ("warmup", {"warmup": 0}),
        ("duration", {"min_duration": 30.0}),
        ("prefix-cache", {"prefix_cache": True}),
    ],
)
def test_what_differs_is_named_and_can_be_allowed(write: Make, name: str, change: dict[str, Any]) -> None:
    a, b = write("a", {SERVED: BEFORE}), write("b", {SERVED: AFTER}, **change)
    assert [obstacle.name for obstacle in compare_runs(a, b).obstacles] == [name]
    if name == "model":
        found = bench(a, b, "--gate", GATE)
        assert found.exit_code == 3 and f"--allow-different {name}" in found.stdout
    assert len(compare_runs(a, b, allowed=[name]).differences) == 1


def test_batches_of_other_sizes_are_never_compared(write: Make) -> None:
    a, b = (write(str(count), {SERVED: BEFORE}, num_prompts=count, warmup=8) for count in (8, 16))
    found = bench(a, b)
    assert found.exit_code == 3
    assert "not comparable (num-prompts): num-prompts differ: A has 8, B has 16" in found.stdout
    assert "allow-different" not in found.stdout
    with pytest.raises(UsageError, match="no difference 'num-prompts' to allow"):
        compare_runs(a, b, allowed=["num-prompts"])


@pytest.mark.parametrize("order", [1, -1])
def test_an_offline_and_an_online_run_are_not_compared(make: Make, write: Make, order: int) -> None:
    a, b = [make("online"), write("offline", {SERVED: BEFORE})][::order]
    with pytest.raises(UsageError, match=r"is a run of bench o\w+line and .* of bench o") as raised:
        compare_runs(a, b)
    assert "two runs of the same command" in raised.value.hint


@pytest.mark.parametrize(
    ("after", "gate", "code"),
    [
        ([rate * 1.001 for rate in BEFORE], f"{GATE}, total_tok_per_s>=-3%, req_per_s>=2", 0),
        (AFTER, GATE, 1),
        ([97.0, 135.0, 75.0, 112.0], GATE, 2),
        (AFTER, "output_tok_per_s>=200", 1),
    ],
)
def test_gates_end_as_those_of_online_runs(write: Make, after: list[float], gate: str, code: int) -> None:
    a, b = write("a", {SERVED: BEFORE}), write("b", {SERVED: after})
    found = bench(a, b, "--gate", gate)
    assert found.exit_code == code, found.stdout
    assert bench(a, b, "--gate", gate, "--json").exit_code == code
    [first, *_] = compare_runs(a, b, parse_gate(gate)).gates
    if code == 2:
        assert f"about {first.needed_repeats} repeats of each would decide" in first.reason


@pytest.mark.parametrize("gate", ["ttft_p99<=+10%", "error_rate<=1%", "goodput_req_per_s>=-3%"])
def test_a_gate_on_what_a_batch_has_not_is_a_usage_error(write: Make, gate: str) -> None:
    run = write("a", {SERVED: BEFORE, IN_PROCESS: BEFORE})
    with pytest.raises(UsageError, match="a run of bench offline does not measure") as raised:
        compare_runs(run, run, parse_gate(gate))
    assert raised.value.hint == "it measures req_per_s, output_tok_per_s, total_tok_per_s"


def test_ways_of_an_engine_are_matched_by_label(write: Make) -> None:
    a = write("a", {SERVED: BEFORE, IN_PROCESS: BEFORE})
    b = write("b", {SERVED: AFTER})
    assert [obstacle.reason for obstacle in compare_runs(a, b).obstacles] == [f"only A has {IN_PROCESS}"]
    results = compare_runs(a, b, allowed=["engines"])
    assert [(found.engine_a, found.engine_b) for found in results.differences] == [(SERVED, SERVED)]
    [found] = compare_runs(a, b, engine_a=IN_PROCESS, engine_b=SERVED).differences
    assert (found.engine_a, found.engine_b) == (IN_PROCESS, SERVED)
    both = write("x", {"roseinfer (x)": BEFORE, "roseinfer (x, in-process)": BEFORE})
    with pytest.raises(UsageError, match="several engines 'roseinfer@x'") as raised:
        compare_runs(both, both, engine_a="roseinfer@x")
    assert "'roseinfer (x, in-process)'" in raised.value.hint


def test_a_repeat_that_failed_is_an_obstacle_and_the_others_can_be_compared(write: Make) -> None:
    a = write("a", {SERVED: BEFORE})
    b = write("b", {SERVED: AFTER}, failed=[(SERVED, 1)])
    assert [obstacle.reason for obstacle in compare_runs(a, b).obstacles] == [
        f"B: {SERVED}, batch of 8 prompts, repeat 2: not measured: it died"
    ]
    assert compare_runs(a, b, allowed=["invalid"]).outcome == "not comparable"
    [found] = compare_runs(a, b, allowed=["repeats"]).differences
    before, after = (np.delete(rates, 1) for rates in (BEFORE, AFTER))
    assert (found.repeats_a, found.repeats_b, found.paired) == (3, 3, True)
    assert found.adjusted_p == pytest.approx(stats.ttest_rel(np.log(after), np.log(before)).pvalue)
    nothing = write("c", {SERVED: [1.0]}, failed=[(SERVED, 0)])
    with pytest.raises(UsageError, match="nothing was measured"):
        compare_runs(a, nothing)


def test_more_repeats_of_one_run_have_no_counterpart(write: Make) -> None:
    a, b = write("a", {SERVED: BEFORE}), write("b", {SERVED: AFTER[:3]})
    [found] = compare_runs(a, b).differences
    assert (found.repeats_a, found.repeats_b) == (3, 3)
    assert found.value_a == pytest.approx(np.mean(BEFORE[:3]))


def test_one_run_with_itself_says_what_the_run_says(write: Make) -> None:
    run = write("a", {SERVED: BEFORE, IN_PROCESS: AFTER, "vLLM": [99.0, 131.0, 83.0, 108.0]})
    results, said = compare_runs(run, run), load_run(run).results.comparisons
    assert len(results.differences) == len(said) == 3
    for found, own in zip(results.differences, said, strict=True):
        assert (found.engine_a, found.engine_b) == (own.a, own.b) and own.ci and found.ratio_ci
        assert found.ratio == pytest.approx(1 / own.ratio)
        assert found.ratio_ci == pytest.approx((1 / own.ci[1], 1 / own.ci[0]))
        assert found.adjusted_p == pytest.approx(own.adjusted_p)
    shown = bench(run, run)
    assert shown.exit_code == 0 and "Whatever else" not in shown.stdout
    assert CompareResults.model_validate_json(bench(run, run, "--json").stdout) == results


def test_one_repeat_decides_only_what_is_plain(write: Make) -> None:
    runs = [write(str(rate), {SERVED: [rate]}) for rate in (100.0, 90.0, 20.0)]
    outcomes = [compare_runs(runs[0], run, parse_gate(GATE)).outcome for run in runs[1:]]
    assert outcomes == ["inconclusive", "regression"]
    assert "a spread of 20 % in rates is assumed" in bench(*runs[:2]).stdout
