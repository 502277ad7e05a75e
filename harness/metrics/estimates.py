"""The statistics that engines are compared by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.metrics.bootstrap import RESAMPLES, Resampling
from harness.metrics.intervals import Estimate
from harness.metrics.percentiles import missing, percentiles
from harness.metrics.rates import Flow, flow
from harness.metrics.samples import Group, pool
from harness.metrics.summary import generator
from harness.spec.results import PERCENTILES
from harness.spec.settings import Slo

#: Metric and statistic, as in the results; a rate is its own statistic.
Key = tuple[str, str]

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
RATES = ("req_per_s", "output_tok_per_s", "goodput_req_per_s")

#: What is compared where nothing else is asked for, and what a verdict holds for together.
HEADLINE: tuple[Key, ...] = (
    *((metric, f"p{q}") for metric in LATENCIES for q in (50, 90, 99)),
    ("output_tok_per_s", "output_tok_per_s"),
)


def estimates(repeats: Sequence[Group], slo: Slo | None = None, seed: int = 0) -> dict[Key, Estimate]:
    """Mean and percentiles of every latency that has a sample, and the rates, of one engine at one scale.

    Goodput needs a service level. Nothing is estimated where no request succeeded.
    """
    group = pool(repeats)
    resampling = Resampling.plan(group.repeat_of, generator(seed, group))
    found: dict[Key, Estimate] = {}
    for metric in LATENCIES:
        sample = group.sample(metric)
        if not sample.values.size:
            continue
        n = sample.values.size if sample.weights is None else int(sample.weights.sum())
        levels = percentiles(sample.values, sample.weights, PERCENTILES)
        rows = resampling.replicates(sample, PERCENTILES)
        mean = float(np.average(sample.values, weights=sample.weights))
        found[metric, "mean"] = Estimate(mean, resampling.means(sample), len(repeats))
        for q, value, row in zip(PERCENTILES, levels, rows, strict=True):
            found[metric, f"p{q}"] = Estimate(float(value), row, len(repeats), missing(q, n))
    return found | (_rates(repeats, slo, seed) if found else {})


def _rates(repeats: Sequence[Group], slo: Slo | None, seed: int) -> dict[Key, Estimate]:
    """Counts of all repeats over their summed time; repeats are resampled."""
    flows = [flow(group, slo) for group in repeats]
    draws = generator(seed, pool(repeats)).multinomial(
        len(flows), np.full(len(flows), 1 / len(flows)), RESAMPLES
    )
    seconds = np.array([one.seconds for one in flows])
    if not np.all(seconds > 0):
        return {}
    found = {}
    for rate in RATES:
        counts = [_count(one, rate) for one in flows]
        if any(count is None for count in counts):
            continue
        passed = np.array(counts, dtype=np.float64)
        replicates = (draws @ passed) / (draws @ seconds) if len(flows) > 1 else None
        found[rate, rate] = Estimate(float(passed.sum() / seconds.sum()), replicates, len(flows))
    return found


def _count(passed: Flow, rate: str) -> int | None:
    return {
        "req_per_s": passed.ended,
        "output_tok_per_s": passed.output_tokens,
        "goodput_req_per_s": passed.good,
    }[rate]
