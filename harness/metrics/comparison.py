"""The engines of one run, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from harness.metrics.contrast import Contrast, contrast, judged
from harness.metrics.estimates import Estimates, Point
from harness.schema.load import Load
from harness.schema.results import Comparison


def compare_points(points: Sequence[Point]) -> list[Comparison]:
    """Compare engines pairwise at each load, all repeats pooled; the one that appears first is `a`.

    Returns:
        `a / b` for the statistics of `COMPARED`, load by load. A statistic that a sample does not
        support (p99 of fewer than 100 samples) has no interval. The verdicts hold for all pairs, loads and
        statistics together.
    """
    loads: dict[Load, dict[str, Estimates]] = {}
    for point in points:
        loads.setdefault(point.pooled.load, {})[point.pooled.label] = point.found
    labels = list(dict.fromkeys(point.pooled.label for point in points))
    pairs = [
        (pair, one)
        for load, found in sorted(loads.items())
        for pair in combinations(labels, 2)
        if pair[0] in found and pair[1] in found
        for one in contrast(load, found[pair[0]], found[pair[1]])
    ]
    verdicts = judged([one for _, one in pairs])
    return [_comparison(*pair, one) for (pair, _), one in zip(pairs, verdicts, strict=True)]


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
