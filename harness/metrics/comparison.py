"""Two engines at one scale: the ratio of a statistic, and whether the difference is real."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from harness.metrics.bootstrap import RESAMPLES, Floats, Resampling, interval
from harness.metrics.percentiles import needed, percentiles
from harness.metrics.samples import Group, by_scale, pool, split
from harness.metrics.summary import duration_s, generator
from harness.spec.results import Comparison

COMPARED_METRICS = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
COMPARED_PERCENTILES = (50, 90, 99)
RATE = "output_tok_per_s"

#: A rate has one value a repeat; from fewer repeats than this no interval is made.
MIN_REPEATS_FOR_RATES = 3


@dataclass(frozen=True)
class Statistic:
    """A statistic of one engine at one scale; (B,) bootstrap replicates where the sample supports them."""

    metric: str
    name: str
    value: float
    replicates: Floats | None


def compare(
    requests: pd.DataFrame, chunks: pd.DataFrame, baseline: str | None = None, seed: int = 0
) -> list[Comparison]:
    """Compare engines pairwise at each scale, all repeats pooled.

    Args:
        requests: One row a request (records/schema.py).
        chunks: One row a token-carrying chunk.
        baseline: The label to divide by; only pairs with it are made. Without it every pair is made once,
            the engine that appears first being `a`.
        seed: Of the bootstrap.

    Returns:
        `a / b` for p50, p90 and p99 of TTFT, TPOT, ITL and E2E and for the output token rate, scale by scale.
        Engines are resampled independently. The interval of a percentile is the two-stage bootstrap of
        `bootstrap.py`; that of a rate is over repeats. Without support (p99 of fewer than 100 samples, a
        rate of fewer than 3 repeats) there is no interval and no verdict.
    """
    scales: dict[float, dict[str, dict[tuple[str, str], Statistic]]] = {}
    for repeats in by_scale(split(requests, chunks)):
        found = [*_latencies(pool(repeats), seed), *_rates(repeats, seed)]
        label = repeats[0].label
        scales.setdefault(repeats[0].scale, {})[label] = {(one.metric, one.name): one for one in found}
    return [
        _ratio(a, b, scale, statistics[a][key], statistics[b][key])
        for scale, statistics in sorted(scales.items())
        for a, b in _pairs(list(statistics), baseline)
        for key in statistics[a]
        if key in statistics[b] and statistics[b][key].value > 0
    ]


def _pairs(labels: list[str], baseline: str | None) -> list[tuple[str, str]]:
    if baseline is None:
        return list(combinations(labels, 2))
    return [(label, baseline) for label in labels if label != baseline and baseline in labels]


def _ratio(a: str, b: str, scale: float, of_a: Statistic, of_b: Statistic) -> Comparison:
    ci = None
    if of_a.replicates is not None and of_b.replicates is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            ci = interval(of_a.replicates / of_b.replicates)
    return Comparison(
        a=a,
        b=b,
        scale=scale,
        metric=of_a.metric,
        statistic=of_a.name,
        value_a=of_a.value,
        value_b=of_b.value,
        ratio=of_a.value / of_b.value,
        ci=ci,
        difference=None if ci is None else not ci[0] <= 1 <= ci[1],
    )


def _latencies(group: Group, seed: int) -> list[Statistic]:
    resampling = Resampling.plan(group.repeat_of, generator(seed, group))
    found = []
    for metric in COMPARED_METRICS:
        sample = group.sample(metric)
        if not sample.values.size:
            continue
        n = sample.values.size if sample.weights is None else int(sample.weights.sum())
        levels = percentiles(sample.values, sample.weights, COMPARED_PERCENTILES)
        rows = resampling.replicates(sample, COMPARED_PERCENTILES)
        found += [
            Statistic(metric, f"p{q}", float(level), row if n >= needed(q) else None)
            for q, level, row in zip(COMPARED_PERCENTILES, levels, rows, strict=True)
        ]
    return found


def _rates(repeats: list[Group], seed: int) -> list[Statistic]:
    """The output token rate: tokens of all repeats over their summed duration; repeats are resampled."""
    seconds = np.array([duration_s(group.requests) for group in repeats])
    tokens = np.array(
        [group.requests.loc[group.requests["error"].isna(), "completion_tokens"].sum() for group in repeats]
    )
    if not (seconds.sum() > 0 and tokens.sum() > 0):
        return []
    replicates = None
    if len(repeats) >= MIN_REPEATS_FOR_RATES:
        rng = generator(seed, pool(repeats))
        draws = rng.multinomial(len(repeats), np.full(len(repeats), 1 / len(repeats)), RESAMPLES)
        replicates = np.divide(draws @ tokens, draws @ seconds)
    return [Statistic(RATE, RATE, float(tokens.sum() / seconds.sum()), replicates)]
