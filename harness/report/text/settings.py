"""The settings in which engines differ, and which of them can matter at the load of the verdict."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import JsonValue

from harness.engines.selfreport import SIZES
from harness.report.text.numbers import few, number
from harness.report.text.provenance import say
from harness.report.text.verdict import shown_load
from harness.runs.reader import OnlineRun
from harness.schema.fairness import LedgerRow
from harness.schema.load import load_text

#: Tokens of the largest blocks in which engines keep a KV cache.
_BLOCK = 128
#: Limits that differ by no more than this share are as good as equal, such as KV caches of the same memory.
_NEAR = 0.01
#: Of values that are named; longer ones stand in the notice alone.
_SHORT = 16


def unequal_settings(run: OnlineRun) -> str:
    """One sentence; empty where settings hardly differ or are unknown, and of a tuning, which sets them."""
    known = [] if run.meta.tune is not None or run.results.ledger is None else run.results.ledger.unequal
    rows = [row for row in known if not _is_near(row)]
    if not rows:
        return ""
    needed = _needed(run)
    said = [_words(row) for row in rows if not _is_ample(row, needed.get(row.key))]
    if not said:
        return "The settings that differ are limits, which this load does not reach."
    which = few(said) if len(said) > 1 else said[0]
    return f"Settings that differ{' and can matter' * (len(said) < len(rows))}: {which}."


def _needed(run: OnlineRun) -> Mapping[str, int]:
    """What the requests in flight can take of a limit at most, by its key; of a cache only where it is of no
    use to later prompts."""
    load = shown_load(run)
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


def _words(row: LedgerRow) -> str:
    """The setting, with its values where they are short, and whose they are."""
    name, _, unit = row.name.removesuffix(")").partition(" (")
    values = _values(row)
    if all(isinstance(value, bool) for value in values.values()):
        return f"{name} (off in {few([label for label, value in values.items() if not value])})"
    numbers = {label: _number(value) for label, value in values.items()}
    known = {label: value for label, value in numbers.items() if value is not None}
    if len(known) == len(values) and len(set(known.values())) > 1:
        return f"{name} ({_ends(known)}{' ' * bool(unit)}{unit})"
    by: dict[str, list[str]] = {}
    for label, value in values.items():
        by.setdefault(say(value), []).append(label)
    if row.key != "answers" and max(map(len, by)) > _SHORT:  # of answers the name alone says nothing
        return name
    return f"{name} ({', '.join(f'{text} in {few(labels)}' for text, labels in by.items())})"


def _number(value: JsonValue) -> float | None:
    """A number as it is, of a list of numbers how many there are; None of other values."""
    if isinstance(value, str) and (sizes := SIZES.fullmatch(value)):
        return float(sizes[1])
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return float(len(value))
    return float(value) if isinstance(value, int | float) else None


def _ends(limits: Mapping[str, float]) -> str:
    """The least and the most of a setting's values by label, with the engine that alone has one of them."""
    low, high = min(limits.values()), max(limits.values())
    least, most = ([label for label in limits if limits[label] == end] for end in (low, high))
    others = "others" if len(least) + len(most) == len(limits) else "others {} to"
    if len(limits) == 2:
        return f"{least[0]} {number(low, 0)}, {most[0]} {number(high, 0)}"
    if len(least) == 1:
        return f"{least[0]} {number(low, 0)}, {others.format('up')} {number(high, 0)}"
    if len(most) == 1:
        return f"{most[0]} {number(high, 0)}, {others.format('down')} {number(low, 0)}"
    return f"{number(low, 0)} to {number(high, 0)}"
