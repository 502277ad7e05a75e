"""The settings in which engines differ, and which of them can matter at the load of the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from pydantic import JsonValue

from harness.metrics.rankings import shown_load
from harness.report.text.provenance import fact_text
from harness.runs.reader import Run
from harness.schema.facts import Fact, Value
from harness.schema.fairness import LedgerRow
from harness.schema.load import load_text

#: Tokens of the largest blocks in which engines keep a KV cache.
_BLOCK = 128
#: Limits that differ by no more than this share are as good as equal, such as KV caches of the same memory.
_NEAR = 0.01


def unequal_settings(run: Run) -> Iterator[Fact]:
    """State each setting that differs between engines; nothing of a tuning, which sets them."""
    ledger = None if run.meta.tune is not None else run.results.ledger
    rows = [row for row in ledger.unequal if not _is_near(row)] if ledger else []
    needed = _needed(run) if rows else {}
    for row in rows:
        reported = [f"{label} {fact_text(value)}" for label, value in _values(row).items()]
        values: dict[str, Value] = {"setting": row.name, "reported": ", ".join(reported)}
        yield Fact(kind="unequal_setting", values=values | {"ample": _is_ample(row, needed.get(row.key))})


def _needed(run: Run) -> Mapping[str, int]:
    """What the requests in flight can take of a limit at most, by its key; of a cache only where it is of no
    use to later prompts."""
    load = shown_load(run.pooled)
    peaks = [summary.peak_in_flight for summary in run.pooled if summary.load == load]
    sent = (run.requests["load"] == load_text(load)).to_numpy(dtype=bool)
    known = [peak for peak in peaks if peak is not None]
    if not sent.any() or len(known) < len(peaks):
        return {}
    prompts, answers, reusable = (
        run.requests[name].to_numpy(np.float64)[sent]
        for name in ("input_tokens", "output_tokens", "reusable_tokens")
    )
    in_flight, prompt = max(known), int(prompts.max())
    whole = int((prompts + answers).max())
    needed = {"max_batch": in_flight, "max_batched_tokens": in_flight * prompt}
    if not np.nansum(reusable):
        needed["kv_tokens"] = in_flight * -(-whole // _BLOCK) * _BLOCK
    return needed


def _values(row: LedgerRow) -> dict[str, JsonValue]:
    """By label, of the engines that tell."""
    return {label: fact.value for label, fact in row.facts.items() if fact is not None}


def _is_ample(row: LedgerRow, needed: int | None) -> bool:
    """Whether a limit is reached by no engine."""
    return needed is not None and all(
        isinstance(value, int | float) and value >= needed for value in _values(row).values()
    )


def _is_near(row: LedgerRow) -> bool:
    """Whether it is a number that hardly differs."""
    values = _values(row).values()
    numbers = [value for value in values if isinstance(value, int | float)]
    return len(values) == len(numbers) > 0 and min(numbers) >= (1 - _NEAR) * max(numbers) > 1
