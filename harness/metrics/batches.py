"""The engines of an offline run, pair by pair, by their output tokens a second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from harness.metrics.holm import holm
from harness.metrics.intervals import LEVEL, Effect, Estimate, paired_ratio
from harness.schema.results import BatchComparison, OfflineResult


def compare_batches(results: Sequence[OfflineResult]) -> list[BatchComparison]:
    """Compare engines pairwise over the repeats that both have; the one that appears first is `a`.

    The verdicts hold for all pairs together. One repeat shows nothing of how repeats differ: a spread is
    assumed, as for the rates of `bench online`.
    """
    rates: dict[str, dict[int, float]] = {}
    for result in results:
        if result.output_tok_per_s > 0:
            rates.setdefault(result.label, {})[result.repeat] = result.output_tok_per_s
    found: list[tuple[str, str, int, Effect]] = []
    for a, b in combinations(rates, 2):
        if both := sorted(rates[a].keys() & rates[b].keys()):
            of_a, of_b = (_estimate([rates[label][repeat] for repeat in both]) for label in (a, b))
            found.append((a, b, len(both), paired_ratio(of_a, of_b)))
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
            verdict="no difference" if p is None or p > LEVEL else "better" if effect.value > 1 else "worse",
        )
        for (a, b, repeats, effect), p in zip(found, adjusted, strict=True)
    ]


def _estimate(rates: Sequence[float]) -> Estimate:
    each = np.array(rates)
    return Estimate(float(each.mean()), each)
