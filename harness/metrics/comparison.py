"""The engines of one run, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pandas as pd

from harness.metrics.contrast import Contrast, contrast, judged
from harness.metrics.estimates import Estimates, Point, measure
from harness.metrics.samples import by_load, split
from harness.metrics.window import Cut
from harness.schema.load import Load
from harness.schema.results import Comparison


def compare(
    requests: pd.DataFrame,
    chunks: pd.DataFrame,
    baseline: str | None = None,
    seed: int = 0,
    cut: Cut | None = None,
) -> list[Comparison]:
    """Compare engines pairwise at each load, all repeats pooled.

    Args:
        requests: One row a request (records/columns.py).
        chunks: One row a token-carrying chunk.
        baseline: The label to divide by; only pairs with it are made. Without it every pair is made once,
            the engine that appears first being `a`.
        seed: Of the bootstrap.
        cut: The part of each cell that is measured; None: all.

    Returns:
        `a / b` for p50, p90 and p99 of TTFT, TPOT, ITL and E2E and for the output token rate, load by load.
        Engines are resampled independently. A statistic that a sample does not support (p99 of fewer than 100
        samples) has no interval. The verdicts of a pair hold for all its loads and statistics together.
    """
    points = [measure(repeats, seed=seed) for repeats in by_load(split(requests, chunks, cut))]
    return compare_points(points, baseline)


def compare_points(points: Sequence[Point], baseline: str | None = None) -> list[Comparison]:
    """`compare` of what is estimated already."""
    loads: dict[Load, dict[str, Estimates]] = {}
    for point in points:
        loads.setdefault(point.pooled.load, {})[point.pooled.label] = point.found
    labels = list(dict.fromkeys(point.pooled.label for point in points))
    pairs = {
        pair: judged(
            [
                one
                for load, found in sorted(loads.items())
                if pair[0] in found and pair[1] in found
                for one in contrast(load, found[pair[0]], found[pair[1]])
            ]
        )
        for pair in _pairs(labels, baseline)
    }
    return [
        _comparison(*pair, one)
        for load in sorted(loads)
        for pair, contrasts in pairs.items()
        for one in contrasts
        if one.load == load
    ]


def _pairs(labels: list[str], baseline: str | None) -> list[tuple[str, str]]:
    if baseline is None:
        return list(combinations(labels, 2))
    return [(label, baseline) for label in labels if label != baseline and baseline in labels]


def _comparison(a: str, b: str, one: Contrast) -> Comparison:
    ci = one.ratio.ci
    return Comparison(
        a=a,
        b=b,
        load=one.load,
        metric=one.metric,
        statistic=one.statistic,
        value_a=one.a.value,
        value_b=one.b.value,
        ratio=one.ratio.value,
        ci=ci,
        difference=None if ci is None else not ci[0] <= 1 <= ci[1],
        adjusted_p=one.adjusted_p,
        comparisons=one.comparisons,
        verdict=one.verdict,
        spread=one.spread,
        repeats=one.repeats,
        repeats_to_find=one.repeats_to_find,
    )
