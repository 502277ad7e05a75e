"""What a tuning found, in words and tables."""

from __future__ import annotations

from typing import Any

import pytest

from harness.report.tables.tuning import tuning_answer, tuning_tables, written
from harness.schema.facts import Fact
from harness.schema.tune import Configuration, ConfigurationFound, FinalistFound, Space, TunePlan, TuneResults

SPACE = Space.model_validate({"engine": "vllm", "args": {"--n": [1, 2, 3], "--a": [True, False]}})


def results(**given: Any) -> TuneResults:
    settings = [{}, {"--n": 2, "--a": False}, {"--n": 1}]
    labels = ["vLLM", "vLLM (c1)", "vLLM (c2)"]
    made = [
        Configuration(label=label, variant=None, settings=chosen)
        for label, chosen in zip(labels, settings, strict=True)
    ]
    objective, limits = given.get("objective", "tpot_p50"), given.get("limits")
    plan = TunePlan(engine="vllm", space=SPACE, configurations=made, objective=objective, limits=limits)
    states = [("default", [9.0]), ("finalist", [5.0, 7.0]), ("failed", [])]
    found = [
        ConfigurationFound(**c.model_dump(), state=state, values=values, reason="no memory" * (not values))
        for c, (state, values) in zip(made, states, strict=True)
    ]
    usual: dict[str, Any] = {"value": 6.0, "default": 9.0, "ratio": 2 / 3, "ci": (0.6, 0.75)}
    usual |= {"verdict": "better", "repeats": (5, 5), "within": None, "label": "vLLM (c1)"}
    finalists = [FinalistFound(**usual | given.get("finalist", {}))]
    best = given.get("best", "vLLM (c1)")
    return TuneResults(plan=plan, configurations=found, finalists=finalists, best=best)


def strong(tune: TuneResults) -> list[str]:
    [sentence] = tuning_answer(tune)
    return [part for part, stands_out in sentence.marked if stands_out]


def test_the_best_settings_are_named_as_a_command_line_has_them() -> None:
    assert strong(results()) == ["vLLM (c1)"] and "--n 2 --no-a" in str(tuning_answer(results())[0])
    assert written({"--n": 2, "OMP": "true", "--a": True}) == "OMP=true --n 2 --a" and written({}) == "none"


@pytest.mark.parametrize("finalist", [{"verdict": "no difference"}, {"within": False}])
def test_what_is_not_better_is_not_best(finalist: dict[str, Any]) -> None:
    assert strong(results(best=None, finalist=finalist, limits="ttft_p90<=1s")) == []


def test_nothing_stands_out_beside_a_default_that_is_invalid_or_missing() -> None:
    failed = Fact(kind="failures", values={"failed": 3, "requests": 100})
    assert strong(results(best=None).model_copy(update={"default_invalid": failed})) == []
    assert strong(results(best=None, finalist={"value": None})) == []


def test_every_configuration_has_a_row() -> None:
    finalists, tried = tuning_tables(results(limits="ttft_p90<=1s", finalist={"within": True}))
    [line] = finalists.lines
    assert list(line) == [
        *("vLLM (c1)", "6.00", "9.00", "0.667", "0.600 to 0.750", "better", "yes", "--n 2 --no-a")
    ]
    assert [row[0].text for row in tried.rows] == ["vLLM", "vLLM (c1)", "vLLM (c2)"]
    assert [row[-2].text for row in tried.rows] == ["default", "finalist", "failed: no memory"]
    assert "2 configurations of 11" in tried.notes[0]
