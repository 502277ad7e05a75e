"""How often a search's 95 % interval holds the true capacity, and how many cells it costs.

The server is a queue: requests come at random (Poisson), are answered one after the other in a time that is
known on average, and each start of the server multiplies that time by a factor of its own. A cell meets the
limit if the p99 of the time from arrival to answer is below it. The truth is the rate at which every second
cell does, found by simulating 1,000 cells at each of many rates.

    python -m benchmarks.search_coverage [--searches 200]

Prints the table of docs/method.md.
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
BOUNDS, CELLS, CELLS_A_START, TOLERANCE = Bounds(0.5, 500.0), 24, 3, 0.1
START = 1.0
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


def search(rng: np.random.Generator, queue: Queue) -> Knowledge:
    """One search, as `bench search` makes it."""
    known = Knowledge(BOUNDS, START)
    service_ms = np.empty(0)
    while len(known.trials) < CELLS and not known.exhausted and not known.known_within(TOLERANCE):
        if len(known.trials) % CELLS_A_START == 0:
            known.start()
            service_ms = queue.start(rng)
        load = known.next_load()
        known.add(Trial(load, bool(queue.meets(rng, load, service_ms)[0])))
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--searches", type=int, default=200)
    searches = parser.parse_args().searches
    print("| requests a cell | starts differ by | capacity, req/s | interval holds it | cells | its width |")
    print("|---|---|---|---|---|---|")
    for requests in REQUESTS:
        for spread in SPREADS:
            rng = np.random.default_rng([SEED, requests, int(spread * 100)])
            queue = Queue(requests, spread)
            truth = queue.capacity(rng)
            found = [search(rng, queue) for _ in range(searches)]
            ends = [known.capacity() for known in found]
            held = np.mean([(e.low or 0) <= truth <= (e.high or np.inf) for e in ends])
            width = np.median([(e.high or np.inf) / (e.low or np.nan) - 1 for e in ends])
            cells = np.mean([len(known.trials) for known in found])
            print(
                f"| {requests:,} | {spread:.0%} | {truth:.1f} | {held:.1%} | {cells:.1f} | {width:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
