"""The engines of one run, pair by pair."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations

from harness.metrics.contrast import Contrast, contrast, judged
from harness.metrics.estimates import Estimates, Point
from harness.schema.load import Load
from harness.schema.results import Comparison


def compare_points(points: Sequence[Point], without: Collection[str] = ()) -> list[Comparison]:
    """Compare engines pairwise at each load, all repeats pooled; the one that appears first is `a`.

    Args:
        without: Metrics that are not compared.

    Returns:
        `a / b` for the statistics of `COMPARED`, load by load. A statistic that a sample does not
        support (p99 of fewer than 100 samples) has no interval. The verdicts hold for all pairs, loads and
        statistics together.
    """
    loads: dict[Load, dict[str, Estimates]] = {}
    for point in points:
        compared = {key: known for key, known in point.found.items() if key[0] not in without}
        loads.setdefault(point.pooled.load, {})[point.pooled.label] = compared
    labels = list(dict.fromkeys(point.pooled.label for point in points))
    pairs = [
        (pair, contrasted)
        for load, found in sorted(loads.items())
        for pair in combinations(labels, 2)
        if pair[0] in found and pair[1] in found
        for contrasted in contrast(load, found[pair[0]], found[pair[1]])
    ]
    verdicts = judged([contrasted for _, contrasted in pairs])
    return [_comparison(*pair, contrasted) for (pair, _), contrasted in zip(pairs, verdicts, strict=True)]


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
