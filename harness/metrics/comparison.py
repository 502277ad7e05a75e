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
        (pair, compared)
        for load, found in sorted(loads.items())
        for pair in combinations(labels, 2)
        if pair[0] in found and pair[1] in found
        for compared in contrast(load, found[pair[0]], found[pair[1]])
    ]
    verdicts = judged([compared for _, compared in pairs])
    return [_comparison(*pair, compared) for (pair, _), compared in zip(pairs, verdicts, strict=True)]


def _comparison(a: str, b: str, contrast: Contrast) -> Comparison:
    ci = contrast.ratio.ci
    return Comparison(
        a=a,
        b=b,
        load=contrast.load,
        metric=contrast.metric,
        statistic=contrast.statistic,
        value_a=contrast.a.value,
        value_b=contrast.b.value,
        ratio=contrast.ratio.value,
        ci=ci,
        difference=None if ci is None else not contrast.ratio.holds_one,
        adjusted_p=contrast.adjusted_p,
        comparisons=contrast.comparisons,
        primary=contrast.primary,
        verdict=contrast.verdict,
        spread=contrast.spread,
        repeats=contrast.repeats,
        repeats_to_find=contrast.repeats_to_find,
    )
