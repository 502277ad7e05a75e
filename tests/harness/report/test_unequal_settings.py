"""Facts about settings that are not equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


@pytest.mark.parametrize(
    ("rows", "reusable_tokens", "shown"),
    [
        ({"dtype": ("float16", "float16")}, None, {}),
        (
            {"kv_tokens": (743_120, 749_796), "threads": (1, 2)},
            None,
            {"threads": False},
        ),  # of the same memory
        ({"kv_tokens": (743_120, 800_000)}, 16, {"KV cache (tokens)": False}),
        ({"kv_tokens": (10**8, 10**9)}, None, {"KV cache (tokens)": True}),
        ({"kv_tokens": (10**8, 10**9)}, 16, {"KV cache (tokens)": False}),  # which later prompts can use
        ({"max_batch": (1, 1000)}, None, {"max batch": False}),
        ({"max_batch": (900, 1000)}, None, {"max batch": True}),  # that no engine reaches
    ],
)
def test_settings_that_differ_are_stated_and_whether_they_can_matter(
    run: Run, rows: Any, reusable_tokens: int | None, shown: dict[str, bool]
) -> None:
    requests = run.requests
    if reusable_tokens is not None:
        requests = requests.assign(reusable_tokens=reusable_tokens)
    assert differing(with_settings(replace(run, requests=requests), **rows)) == shown


def test_a_setting_is_stated_with_the_value_of_each_engine(run: Run) -> None:
    [fact] = unequal_settings(with_settings(run, threads=(1, 2000)))
    assert fact.values == {"setting": "threads", "reported": "roseinfer 1, vLLM 2,000", "ample": False}
    assert not [*unequal_settings(replace(run, results=run.results.model_copy(update={"ledger": None})))]
