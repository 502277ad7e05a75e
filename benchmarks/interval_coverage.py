"""How often a 95 % interval of the ratio of two alike engines holds 1, when repeats differ at random.

Both engines draw their requests' latencies from one lognormal distribution, and each repeat of each engine
multiplies its latencies, and its rate, by a lognormal factor of its own. Compared are the intervals that
`bench` reports (`harness/metrics/intervals.py`) and the percentile bootstrap over repeats and requests.

    python -m benchmarks.interval_coverage [TRIALS]

The table stands in docs/method.md.
"""

from __future__ import annotations

import sys

import numpy as np

from harness.metrics.bootstrap import RESAMPLES, Floats, Resampling
from harness.metrics.intervals import Ends, Estimate, ratio
from harness.metrics.samples import Sample

SEED = 20240601
QS = (50.0, 90.0, 99.0)
BETWEEN = 0.03
WITHIN = (0.05, 0.5)
SHAPES = ((1, 200), (2, 200), (3, 200), (5, 200), (10, 100))


def engine(
    repeats: int, requests: int, within: float, rng: np.random.Generator
) -> tuple[list[Estimate], Floats]:
    """p50, p90, p99 and a rate of one engine, and (4, B) of their two-stage resamples."""
    factor = rng.lognormal(0, BETWEEN, repeats)
    latency = rng.lognormal(0, within, (repeats, requests)) * factor[:, None]
    sample = Sample(latency.ravel(), None, np.arange(latency.size))
    whole = Resampling.plan(np.repeat(np.arange(repeats), requests), rng)
    times = rng.multinomial(repeats, np.full(repeats, 1 / repeats), RESAMPLES)
    inner = [rng.multinomial(times[:, r] * requests, np.full(requests, 1 / requests)) for r in range(repeats)]
    both = Resampling(np.arange(latency.size), np.concatenate(inner, axis=1, dtype=np.float32), repeats)
    rates = times @ factor / repeats
    values = [*np.percentile(latency, QS), factor.mean()]
    rows = [*whole.replicates(sample, QS), rates if repeats > 1 else None]
    ours = [Estimate(float(value), row, repeats) for value, row in zip(values, rows, strict=True)]
    return ours, np.vstack([both.replicates(sample, QS), rates])


def line(trials: list[list[Ends]]) -> str:
    """Per statistic, the share of intervals that hold 1, and their median half-width, in per cent."""
    low, high = np.moveaxis(np.array(trials), 2, 0)
    held = 100 * np.mean((low <= 1) & (high >= 1), axis=0)
    half = 100 * np.median(np.sqrt(high / low) - 1, axis=0)
    return " | ".join(f"{share:.1f} (±{width:.1f})" for share, width in zip(held, half, strict=True))


def main(trials: int) -> None:
    """Print one line for each spread of requests, number of repeats and method."""
    rng = np.random.default_rng(SEED)
    print("| requests | repeats | interval | p50 | p90 | p99 | rate |\n|---|---|---|---|---|---|---|")
    for within in WITHIN:
        for repeats, requests in SHAPES:
            ours: list[list[Ends]] = []
            plain: list[list[Ends]] = []
            for _ in range(trials):
                (a, of_a), (b, of_b) = (engine(repeats, requests, within, rng) for _ in range(2))
                found = [ratio(x, y).ci for x, y in zip(a, b, strict=True)]
                ours.append([ends for ends in found if ends is not None])
                plain.append([(low, high) for low, high in np.percentile(of_a / of_b, (2.5, 97.5), axis=1).T])
            head = f"| {requests}, {within:.0%} apart | {repeats}"
            print(f"{head} | bench | {line(ours)} |\n{head} | plain bootstrap | {line(plain)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
