"""Facts about settings that are not equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import JsonValue

from harness.report.notices import unequal_settings
from harness.runs.reader import Run
from harness.schema.fairness import EngineFact, Ledger, LedgerRow

_NAMES = {"kv_tokens": "KV cache (tokens)", "graphs": "CUDA graphs (batch sizes)"}


def with_settings(run: Run, **rows: tuple[JsonValue, JsonValue]) -> Run:
    """Each row has the values of two engines."""
    labels = ["roseinfer", "vLLM"]
    found = [
        LedgerRow(
            key=key,
            name=_NAMES.get(key, key.replace("_", " ")),
            facts={
                label: EngineFact(value=value, source="log")
                for label, value in zip(labels, values, strict=True)
            },
            agreement="differs" if values[0] != values[1] else "equal",
        )
        for key, values in rows.items()
    ]
    return replace(run, results=run.results.model_copy(update={"ledger": Ledger(labels=labels, rows=found)}))


def differing(run: Run) -> dict[str, bool]:
    """Names of the settings that differ, and whether each is a limit that nobody reaches."""
    return {str(fact.values["setting"]): bool(fact.values["ample"]) for fact in unequal_settings(run)}


def test_equal_settings_and_unknown_ones_are_not_stated(run: Run) -> None:
    assert differing(with_settings(run, dtype=("float16", "float16"))) == {}
    assert differing(replace(run, results=run.results.model_copy(update={"ledger": None}))) == {}


def test_a_setting_is_stated_with_the_value_of_each_engine(run: Run) -> None:
    [fact] = unequal_settings(with_settings(run, threads=(1, 2000)))
    assert fact.values == {"setting": "threads", "reported": "roseinfer 1, vLLM 2,000", "ample": False}


def test_limits_that_hardly_differ_are_not_stated(run: Run) -> None:
    """As KV caches of the same memory."""
    near, far = (743_120, 749_796), (743_120, 800_000)
    assert differing(with_settings(run, kv_tokens=near, threads=(1, 2))) == {"threads": False}
    shared = replace(run, requests=run.requests.assign(reusable_tokens=16.0))
    assert differing(with_settings(shared, kv_tokens=far)) == {"KV cache (tokens)": False}


@pytest.mark.parametrize(("limits", "ample"), [((1, 1000), False), ((900, 1000), True)])
def test_a_limit_that_no_engine_can_reach_is_ample(run: Run, limits: tuple[int, int], ample: bool) -> None:
    shown = with_settings(run, max_batch=limits, kv_tokens=(10**8, 10**9))
    assert differing(shown) == {"max batch": ample, "KV cache (tokens)": True}


def test_a_larger_cache_matters_where_later_prompts_can_use_it(run: Run) -> None:
    reusing = replace(run, requests=run.requests.assign(reusable_tokens=16))
    assert differing(with_settings(reusing, kv_tokens=(10**8, 10**9))) == {"KV cache (tokens)": False}
