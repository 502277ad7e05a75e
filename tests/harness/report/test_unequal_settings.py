"""The sentence of the first screen on settings that are not equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import JsonValue

from harness.report.text.badges import badges
from harness.report.text.settings import _ends, unequal_settings
from harness.report.text.terms import terms
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


def test_equal_settings_and_unknown_ones_are_not_spoken_of(run: Run) -> None:
    assert unequal_settings(with_settings(run, dtype=("float16", "float16"))) == ""
    assert unequal_settings(replace(run, results=run.results.model_copy(update={"ledger": None}))) == ""


@pytest.mark.parametrize(("key", "kind"), [("kv_tokens", "note"), ("threads", "warn")])
def test_engines_may_have_limits_of_their_own(run: Run, key: str, kind: str) -> None:
    [badge] = [badge for badge in badges(with_settings(run, **{key: (1, 2)})) if "setting" in badge.text]
    assert (badge.kind, badge.text) == (kind, "1 setting differs")


def test_settings_are_named_with_values_that_are_short_and_whose_they_are(run: Run) -> None:
    long = ("a text of many words", "another text of many words")
    shown = with_settings(run, dtype=("float16", "bfloat16"), chunked_prefill=(False, True), context=long)
    said = (
        "Settings that differ: dtype (float16 in roseinfer, bfloat16 in vLLM), chunked prefill (off in "
        "roseinfer) and context."
    )
    assert unequal_settings(shown) == said and said in terms(shown)
    ends = ("at the length asked for", "on their own")
    assert unequal_settings(with_settings(run, answers=ends)) == (
        "Settings that differ: answers (at the length asked for in roseinfer, on their own in vLLM)."
    )
    assert unequal_settings(with_settings(run, threads=(1, 2))) == (
        "Settings that differ: threads (roseinfer 1, vLLM 2)."
    )


def test_limits_that_hardly_differ_are_not_spoken_of(run: Run) -> None:
    """As KV caches of the same memory, which the notice still has."""
    near, far = (743_120, 749_796), (743_120, 800_000)
    assert unequal_settings(with_settings(run, kv_tokens=near)) == ""
    assert unequal_settings(with_settings(run, kv_tokens=near, threads=(1, 2))) == (
        "Settings that differ: threads (roseinfer 1, vLLM 2)."
    )
    shared = replace(run, requests=run.requests.assign(reusable_tokens=16.0))
    assert "KV cache (roseinfer 743,120" in unequal_settings(with_settings(shared, kv_tokens=far))


@pytest.mark.parametrize(("sizes", "said"), [
    (("23 sizes from 1 to 256", "51 sizes from 1 to 512"), "roseinfer 23, vLLM 51 batch sizes"),
    (([], [1, 2, 4]), "roseinfer 0, vLLM 3 batch sizes"),
    (([1, 2], [1, 4]), "1, 2 in roseinfer, 1, 4 in vLLM"),
])  # fmt: skip
def test_sizes_are_counted(run: Run, sizes: tuple[JsonValue, JsonValue], said: str) -> None:
    """As those of CUDA graphs, which have many."""
    assert (
        unequal_settings(with_settings(run, graphs=sizes)) == f"Settings that differ: CUDA graphs ({said})."
    )


@pytest.mark.parametrize(("limits", "said"), [
    ((1, 1000), "Settings that differ and can matter: max batch (roseinfer 1, vLLM 1,000)."),
    ((900, 1000), "The settings that differ are limits, which this load does not reach."),
])  # fmt: skip
def test_a_limit_that_no_engine_can_reach_does_not_matter(
    run: Run, limits: tuple[int, int], said: str
) -> None:
    assert unequal_settings(with_settings(run, max_batch=limits, kv_tokens=(10**8, 10**9))) == said


def test_a_larger_cache_matters_where_later_prompts_can_use_it(run: Run) -> None:
    reusing = replace(run, requests=run.requests.assign(reusable_tokens=16))
    said = unequal_settings(with_settings(reusing, kv_tokens=(10**8, 10**9)))
    assert said == "Settings that differ: KV cache (roseinfer 100,000,000, vLLM 1,000,000,000 tokens)."


@pytest.mark.parametrize(("values", "said"), [
    ((128, 2048, 2048), "a 128, others 2,048"),
    ((128, 512, 2048), "a 128, others up to 2,048"),
    ((128, 4096, 128), "b 4,096, others 128"),
    ((256, 1024, 4096, 256), "c 4,096, others down to 256"),
    ((1, 1, 2, 2), "1 to 2"),
])  # fmt: skip
def test_the_engine_that_alone_has_an_end_is_named(values: tuple[int, ...], said: str) -> None:
    assert _ends(dict(zip("abcd", values, strict=False))) == said
