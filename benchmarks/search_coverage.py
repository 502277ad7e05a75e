"""How often a search's 95 % interval holds the true capacity, and how many cells it costs.

The server is a queue: requests come at random (Poisson), are answered one after the other in a time that is
known on average, and each start of the server multiplies that time by a factor of its own. A cell meets the
limit if the p99 of the time from arrival to answer is below it. The truth is the rate at which every second
cell does, found by simulating 1,000 cells at each of many rates.

    python -m benchmarks.search_coverage [--searches 200] [--cells 24]

Prints the table of docs/method.md, or its part with so many cells.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.metrics.capacity import Bounds, Knowledge, Trial

SEED = 20261122
#: ms of one answer on average, how much answers differ, and the limit on p99.
SERVICE_MS, WITHIN, LIMIT_MS = 20.0, 0.3, 200.0
BOUNDS, TOLERANCE = Bounds(0.5, 500.0), 0.1
#: Cells of a search at most, cells of each start, and the first rate.
BUDGETS = ((24, 3, 1.0), (16, 4, 1.0), (8, 4, 16.0))
REQUESTS = (100, 400)
SPREADS = (0.0, 0.03, 0.1)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Queue:
    """A server that is started again and again."""

    requests: int
    spread: float

    def start(self, rng: np.random.Generator, count: int = 1) -> Floats:
        """(count,) ms of an answer on average, for as many starts."""
        return SERVICE_MS * np.exp(self.spread * rng.standard_normal(count))

    def meets(self, rng: np.random.Generator, rate: float, service_ms: Floats) -> npt.NDArray[np.bool_]:
        """(count,) whether a cell at `rate` requests/s meets the limit, for as many starts."""
        count = service_ms.size
        gaps = rng.exponential(1000 / rate, (self.requests, count))
        noise = np.exp(WITHIN * rng.standard_normal((self.requests, count)) - WITHIN**2 / 2)
        waited, latencies = np.zeros(count), np.empty((self.requests, count))
        for i in range(self.requests):  # Lindley's recursion
            waited = np.maximum(waited - gaps[i], 0)
            waited = waited + service_ms * noise[i]
            latencies[i] = waited
        met: npt.NDArray[np.bool_] = np.quantile(latencies, 0.99, axis=0) <= LIMIT_MS
        return met

    def capacity(self, rng: np.random.Generator, cells: int = 1000) -> float:
        """The rate at which every second cell of every second start meets the limit."""
        rates = np.geomspace(25, 60, 45)
        shares = np.array([self.meets(rng, rate, self.start(rng, cells)).mean() for rate in rates])
        crossing = np.interp(-0.5, -np.minimum.accumulate(shares), np.log(rates))
        return float(np.exp(crossing))


def search(rng: np.random.Generator, queue: Queue, cells: int, per_start: int, first: float) -> Knowledge:
    """One search, as `bench search` makes it."""
    known = Knowledge(BOUNDS, first)
    service_ms = np.empty(0)
    while len(known.trials) < cells and not known.exhausted and not known.known_within(TOLERANCE):
        if len(known.trials) % per_start == 0:
            known.start()
            service_ms = queue.start(rng)
        load = known.next_load()
        known.add(Trial(load, bool(queue.meets(rng, load, service_ms)[0])))
    return known


def row(requests: int, spread: float, cells: int, per_start: int, first: float, searches: int) -> str:
    """A line of the table."""
    seed = [SEED, requests, int(spread * 100)]
    queue = Queue(requests, spread)
    truth = queue.capacity(np.random.default_rng(seed))
    rng = np.random.default_rng([*seed, cells, per_start])
    found = [search(rng, queue, cells, per_start, first) for _ in range(searches)]
    ends = [known.capacity() for known in found]
    held = np.mean([(e.low or 0) <= truth <= (e.high or np.inf) for e in ends])
    width = np.median([(e.high or np.inf) / (e.low or np.nan) - 1 for e in ends])
    used = np.mean([len(known.trials) for known in found])
    budget = f"{cells}, {per_start} a start, from {first:g} req/s"
    return f"| {budget} | {requests:,} | {spread:.0%} | {truth:.1f} | {held:.1%} | {used:.1f} | {width:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--cells", type=int, choices=[budget[0] for budget in BUDGETS])
    asked = parser.parse_args()
    print("| cells at most | requests a cell | starts differ by | capacity, req/s | held | cells | width |")
    print("|---|---|---|---|---|---|---|")
    for budget in BUDGETS:
        if asked.cells not in (None, budget[0]):
            continue
        for requests in REQUESTS:
            for spread in SPREADS:
                print(row(requests, spread, *budget, asked.searches), flush=True)


if __name__ == "__main__":
    main()
