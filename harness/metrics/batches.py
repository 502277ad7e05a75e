"""Offline batches: the rates of an engine, and the engines of a run pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from harness.metrics.estimates import Estimates
from harness.metrics.holm import holm
from harness.metrics.intervals import LEVEL, Effect, Estimate, are_paired, common, ratio
from harness.metrics.primary import RATE
from harness.schema.metrics import rates
from harness.schema.results import BatchComparison, OfflineResult

#: What an offline run has that gates take.
GATED = tuple(name for name in rates("offline") if name in rates("gated"))


def batch_estimates(repeats: Sequence[OfflineResult], drawn: str = "") -> Estimates:
    """The rates of one engine, from its repeats.

    Args:
        drawn: What the prompts are drawn from. Where it, the repeat and the prompt tokens are the same, two
            engines had the same prompts.
    """
    work = tuple(f"{drawn}, repeat {row.repeat}: {row.prompt_tokens} tokens" for row in repeats)
    found: Estimates = {}
    for name in GATED:
        each = np.array([getattr(row, name) for row in repeats])
        found[name, name] = Estimate(float(each.mean()), each, work=work)
    return found


def compare_batches(results: Sequence[OfflineResult]) -> list[BatchComparison]:
    """Compare engines pairwise by their output tokens a second, over the repeats that both have; the one that
    appears first is `a`.

    The verdicts hold for all pairs together. One repeat shows nothing of how repeats differ: a spread is
    assumed, as for the rates of `bench online`.
    """
    measured = [result for result in results if result.output_tok_per_s > 0]
    labels = dict.fromkeys(result.label for result in measured)
    by_label = {label: [row for row in measured if row.label == label] for label in labels}
    known = {label: batch_estimates(rows)[RATE, RATE] for label, rows in by_label.items()}
    found: list[tuple[str, str, int, Effect]] = []
    for a, b in combinations(known, 2):
        of_a, of_b = common(known[a], known[b])
        if are_paired(of_a, of_b):
            found.append((a, b, of_a.repeats, ratio(of_a, of_b)))
    adjusted = holm([effect.p for *_, effect in found])
    return [
        BatchComparison(
            a=a,
            b=b,
            repeats=repeats,
            ratio=effect.value,
            ci=effect.ci,
            adjusted_p=p,
            comparisons=len(found),
            verdict="no difference"
            if p is None or p > LEVEL or effect.holds_one
            else "better"
            if effect.value > 1
            else "worse",
        )
        for (a, b, repeats, effect), p in zip(found, adjusted, strict=True)
    ]
