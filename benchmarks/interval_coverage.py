"""Share of 95 % intervals that hold the truth, and of runs of equal engines that have a false verdict.

Latencies of a repeat are lognormal with an autocorrelation between neighbouring requests, and each repeat
multiplies them by a lognormal factor of its own. The truth of one repeat is the percentile of its own
distribution, that of several the percentile of a typical repeat, and that of a ratio of two alike is 1.

    python -m benchmarks.interval_coverage [--trials 1000] [--runs 400]

Prints the tables of docs/method.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain, combinations, product

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from harness.metrics.contrast import Contrast, judged
from harness.metrics.estimates import estimates_of
from harness.metrics.intervals import Ends, Estimate, difference, own_interval, ratio
from harness.metrics.samples import Sample
from harness.schema.load import TraceLoad
from harness.schema.metrics import latencies as latency_metrics

SEED = 20261122
WITHIN = 0.5
PERCENTILES = ("p50", "p90", "p99")
SPREADS = (0.03, 0.1, 0.2)
RHOS = (0.0, 0.5, 0.9)
REQUESTS = (100, 300, 1000)
REPEATS = (1, 3, 5, 10)
ENGINES, LOADS, RUN_REPEATS, RUN_REQUESTS = 5, 3, 5, 200

Floats = npt.NDArray[np.float64]


def latencies(rng: np.random.Generator, count: int, requests: int, rho: float, spread: float) -> Floats:
    """(count, requests) of as many repeats."""
    noise = rng.standard_normal((requests, count))
    for i in range(1, requests):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return np.exp(WITHIN * noise.T + spread * rng.standard_normal((count, 1)))


def engine(repeats: Floats) -> dict[str, Estimate]:
    """The estimates of one engine from (R, n) latencies."""
    numbers = np.arange(repeats.shape[1])
    parts = [Sample(values, None, numbers) for values in repeats]
    whole = Sample(repeats.ravel(), None, np.arange(repeats.size))
    return estimates_of(parts, whole)


def share(ends: list[Ends | None], truth: float) -> str:
    """Per cent of the intervals that hold `truth`; a dash where most samples give none."""
    intervals = [pair for pair in ends if pair is not None]
    if len(intervals) < len(ends) / 2:
        return "–"
    return f"{100 * sum(low <= truth <= high for low, high in intervals) / len(intervals):.1f}"


def coverage(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """A line for each shape of a run: one engine's own intervals, then those of a ratio."""
    yield "| repeats | requests | autocorrelation | spread | own p50, p90, p99 | ratio p50, p90, p99 |"
    yield "|---|---|---|---|---|---|"
    truths = {name: float(np.exp(WITHIN * norm.ppf(int(name[1:]) / 100))) for name in PERCENTILES}
    for repeats, requests, rho, spread in product(REPEATS, REQUESTS, RHOS, SPREADS):
        seen_spread = 0.0 if repeats == 1 else spread  # one repeat's own interval speaks of that repeat
        drawn = latencies(rng, 2 * trials * repeats, requests, rho, seen_spread)
        pairs = drawn.reshape(trials, 2, repeats, requests)
        if repeats == 1:
            pairs = pairs * rng.lognormal(0, spread, (trials, 2, 1, 1))
        engines = [(engine(a), engine(b)) for a, b in pairs]
        alone, together = [], []
        for name, truth in truths.items():
            centre = pairs[:, 0, 0, :1] * 0 + truth
            if repeats == 1:
                scale = pairs[:, 0, 0, 0] / drawn.reshape(trials, 2, requests)[:, 0, 0]
                centre = scale[:, None] * truth
            held = [own_interval(a[name]) for a, _ in engines]
            scaled = [
                None if ends is None else (ends[0] / c, ends[1] / c)
                for ends, c in zip(held, centre[:, 0], strict=True)
            ]
            alone.append(share(scaled, 1.0))
            together.append(share([ratio(a[name], b[name]).ci for a, b in engines], 1.0))
        shape = f"| {repeats} | {requests} | {rho:g} | {spread:.0%}"
        yield f"{shape} | {', '.join(alone)} | {', '.join(together)} |"


def false_verdicts(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """A line for each spread: the share of runs of equal engines that have any verdict of better or worse."""
    yield f"| repeats | spread | runs of {ENGINES} engines at {LOADS} loads with a false verdict |"
    yield "|---|---|---|"
    for repeats, spread in product((1, RUN_REPEATS), SPREADS):
        wrong = sum(_has_verdict(repeats, spread, rng) for _ in range(runs))
        yield f"| {repeats} | {spread:.0%} | {wrong} of {runs} ({wrong / runs:.1%}) |"


def _has_verdict(repeats: int, spread: float, rng: np.random.Generator) -> bool:
    contrasts: list[Contrast] = []
    for number in range(LOADS):
        load = TraceLoad(scale=float(number + 1))
        engines = []
        for _ in range(ENGINES):
            factor = rng.standard_normal(
                (repeats, 1)
            )  # what a server start changes, it changes in all metrics
            each = {
                metric: engine(latencies(rng, repeats, RUN_REQUESTS, 0.3, 0.0) * np.exp(spread * factor))
                for metric in latency_metrics("compared")
            }
            engines.append(each)
        for a, b in combinations(engines, 2):
            for metric, name in product(latency_metrics("compared"), PERCENTILES):
                x, y = a[metric][name], b[metric][name]
                contrasts.append(Contrast(load, metric, name, x, y, ratio(x, y), difference(x, y)))
    return any(contrast.verdict in ("better", "worse") for contrast in judged(contrasts))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=400)
    options = parser.parse_args()
    rng = np.random.default_rng(SEED)
    for line in chain(coverage(options.trials, rng), [""], false_verdicts(options.runs, rng)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
