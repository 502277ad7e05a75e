"""Share of searches whose 95 % interval holds the true capacity, with the error of its value and its cost.

The server is a queue: requests come at random (Poisson), are answered one after the other in a time that is
known on average, and each start of the server multiplies that time by a factor of its own. A cell finds the
queue empty and lasts as `bench search` has it without options. It meets the limit if the p99 of the time from
arrival to answer, of the requests that are measured, is below it and the engine does not fall behind. The
truth is the load that meets the limit in the long run: the rate at which p99 is the limit in queues of many
requests, without their beginning.

    python -m benchmarks.search_coverage [--searches 100] [--cells 24]
    python -m benchmarks.search_coverage --agents --searches 200

Prints the tables of docs/method.md, or their part with so many cells. With `--agents` the server has a number
of agents instead, whose jobs have turns with tools between them; a cell is as `bench search --by agents` has
it, and the truth is the most agents at which half of the cells meet the limit.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.capacity import Bounds, Knowledge, Trial
from harness.metrics.samples import in_flight
from harness.metrics.stability import behind_or_stalled, find_change
from harness.schema.search import ROUNDS, SearchPlan

SEED = 20261122
#: ms of one answer on average, and how much answers differ.
SERVICE_MS, WITHIN = 20.0, 0.3
BOUNDS, TOLERANCE = Bounds(0.5, 500.0), 0.1
#: Requests of a cell at least, as of `bench search`.
REQUESTS = 200
#: Cells of a search at most, cells of each start, and the first rate.
BUDGETS = ((24, 3, 1.0), (16, 4, 1.0), (8, 4, 16.0))
#: ms, on p99.
LIMITS = (200, 1000)
SPREADS = (0.0, 0.03, 0.1)
#: Of the queues that tell the truth: how many, and the requests of each, of which the first are left out.
LONG_QUEUES, LONG_REQUESTS, LONG_SETTLED = 400, 12_000, 4_000
#: Cells that tell how a cell of each length answers.
CELLS = 400

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Times:
    """Duration of a cell."""

    settle_s: float
    measured_s: float
    requests: int = REQUESTS


def usual(limit_ms: float) -> Times:
    """Without options."""
    times = SearchPlan.make("rate", f"e2e_p99<={limit_ms:g}ms").times()
    return Times(times["settle"], times["min_duration"])


def start(rng: np.random.Generator, spread: float) -> float:
    """ms of an answer on average, for a start of the server."""
    return float(SERVICE_MS * np.exp(spread * rng.standard_normal()))


def queue(
    rng: np.random.Generator, rate: float, service_ms: float, n: int, count: int
) -> tuple[Floats, Floats]:
    """(n, count) seconds of arrivals and ends, of as many queues that are empty at first."""
    arrivals = np.cumsum(rng.exponential(1 / rate, (n, count)), axis=0)
    noise = np.exp(WITHIN * rng.standard_normal((n, count)) - WITHIN**2 / 2)
    served = np.cumsum(service_ms / 1000 * noise, axis=0)
    before = np.vstack([np.zeros((1, count)), served[:-1]])
    idle = np.maximum.accumulate(arrivals - before, axis=0)  # Lindley's recursion, summed
    return arrivals, served + idle


def meets(rng: np.random.Generator, rate: float, service_ms: float, limit_ms: float, times: Times) -> bool:
    """Return whether a cell at `rate` requests/s meets the limit."""
    n = max(times.requests, int(np.ceil(rate * (times.settle_s + times.measured_s))))
    arrivals, ends = (part[:, 0] for part in queue(rng, rate, service_ms, n, 1))
    measured = arrivals >= times.settle_s
    if np.quantile((ends - arrivals)[measured], 0.99) * 1000 > limit_ms:
        return False
    requests = pd.DataFrame({"t_sched": arrivals, "t_sent": arrivals, "t_end": ends, "error": None})
    if behind_or_stalled(requests) is not None:
        return False
    counts = in_flight(requests, arrivals)
    change = find_change(counts[measured].astype(np.float64))
    return change is None or change.after < change.before


def long_run(rng: np.random.Generator, limit_ms: float) -> float:
    """The rate at which p99 is the limit in the long run."""
    rates = np.geomspace(0.6, 0.99, 40) * 1000 / SERVICE_MS
    p99 = []
    for rate in rates:
        arrivals, ends = queue(rng, rate, SERVICE_MS, LONG_REQUESTS, LONG_QUEUES)
        p99.append(np.quantile((ends - arrivals)[LONG_SETTLED:], 0.99) * 1000)
    return float(np.exp(np.interp(np.log(limit_ms), np.log(p99), np.log(rates))))


def of_cells(rng: np.random.Generator, limit_ms: float, times: Times) -> float:
    """The rate at which every second cell meets the limit."""
    rates = np.geomspace(0.7, 1.1, 16) * 1000 / SERVICE_MS
    shares = [np.mean([meets(rng, r, SERVICE_MS, limit_ms, times) for _ in range(CELLS)]) for r in rates]
    return float(np.exp(np.interp(-0.5, -np.minimum.accumulate(shares), np.log(rates))))


def search(
    rng: np.random.Generator, limit_ms: float, spread: float, cells: int, per_start: int, first: float
) -> Knowledge:
    """One search, as `bench search` makes it."""
    knowledge, times = Knowledge(BOUNDS, first), usual(limit_ms)
    service_ms = SERVICE_MS
    while len(knowledge.trials) < cells and not knowledge.exhausted and not knowledge.known_within(TOLERANCE):
        if len(knowledge.trials) % per_start == 0:
            knowledge.start()
            service_ms = start(rng, spread)
        load = knowledge.next_load()
        knowledge.add(Trial(load, meets(rng, load, service_ms, limit_ms, times)))
    return knowledge


#: Of agents: ms in tools between two turns, and turns of a job, on average; the limit on p90 in ms.
TOOLS_MS, TURNS, AGENTS_LIMIT_MS = 400.0, 10, 200
#: Numbers of agents that may be the truth.
AGENTS = range(4, 33)


def agents_meet(rng: np.random.Generator, agents: int, service_ms: float) -> bool:
    """Return whether a cell with so many agents meets the limit, while all of them work."""
    jobs = ROUNDS * agents
    turns = rng.geometric(1 / TURNS, jobs).tolist()
    n = sum(turns)
    noise = np.exp(WITHIN * rng.standard_normal(n) - WITHIN**2 / 2)
    services, tools = (service_ms * noise / 1e3).tolist(), rng.exponential(TOOLS_MS / 1e3, n).tolist()
    due, begun, free, full_until = [(0.0, job) for job in range(agents)], agents, 0.0, np.inf
    sent: list[float] = []
    took: list[float] = []
    while due:
        t, job = heappop(due)
        free = max(t, free) + services[len(sent)]
        sent.append(t)
        took.append(free - t)
        turns[job] -= 1
        if turns[job]:
            heappush(due, (free + tools[len(sent) - 1], job))
        elif begun < jobs:
            heappush(due, (free, begun))
            begun += 1
        else:
            full_until = min(full_until, free)
    measured = np.array(took)[np.array(sent) <= full_until]
    return float(np.quantile(measured, 0.9)) * 1e3 <= AGENTS_LIMIT_MS


def agents_row(truth: int, spread: float, searches: int) -> str:
    """A line of the table of agents."""
    plan = SearchPlan.make("agents", f"e2e_p90<={AGENTS_LIMIT_MS}ms")
    rng = np.random.default_rng([SEED, int(spread * 100), searches])
    ends, cells = [], []
    for _ in range(searches):
        knowledge = Knowledge(Bounds(plan.lowest, plan.highest, whole=True), plan.first)
        while (
            len(knowledge.trials) < plan.cells
            and not knowledge.exhausted
            and not (knowledge.trials and knowledge.known_within(plan.tolerance))
        ):
            if len(knowledge.trials) % plan.cells_per_start == 0:
                knowledge.start()
                service_ms = start(rng, spread)
            load = round(knowledge.next_load())
            knowledge.add(Trial(load, agents_meet(rng, load, service_ms)))
        ends.append(knowledge.capacity())
        cells.append(len(knowledge.trials))
    held = np.mean([(e.low or 0) <= truth <= (e.high or np.inf) for e in ends])
    off = np.median([e.value for e in ends]) - truth
    width = np.median([(e.high or np.inf) - (e.low or 0) for e in ends])
    return f"| {spread:.0%} | {truth} | {held:.1%} | {off:+g} | {width:g} | {np.mean(cells):.1f} |"


def print_agents(searches: int) -> None:
    rng = np.random.default_rng([SEED, 3])
    shares = [np.mean([agents_meet(rng, n, SERVICE_MS) for _ in range(CELLS)]) for n in AGENTS]
    truth = max(n for n, share in zip(AGENTS, shares, strict=True) if share >= 0.5)
    print("| starts differ by | truth | holds it | median − truth | width | cells |")
    print("|---|---|---|---|---|---|")
    for spread in SPREADS:
        print(agents_row(truth, spread, searches), flush=True)


def row(limit_ms: float, truth: float, spread: float, budget: tuple[int, int, float], searches: int) -> str:
    """A line of the table."""
    cells, per_start, first = budget
    rng = np.random.default_rng([SEED, int(limit_ms), int(spread * 100), cells, per_start])
    searched = [search(rng, limit_ms, spread, cells, per_start, first) for _ in range(searches)]
    ends = [knowledge.capacity() for knowledge in searched]
    held = np.mean([(e.low or 0) <= truth <= (e.high or np.inf) for e in ends])
    off = np.median([e.value for e in ends]) / truth - 1
    width = np.median([(e.high or np.inf) / (e.low or np.nan) - 1 for e in ends])
    words = f"{cells}, {per_start} a start, from {first:g} requests/s"
    return f"| {words} | {limit_ms:,} ms | {spread:.0%} | {held:.1%} | {off:+.1%} | {width:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--searches", type=int, default=100)
    parser.add_argument("--cells", type=int, choices=[budget[0] for budget in BUDGETS])
    parser.add_argument("--agents", action="store_true")
    options = parser.parse_args()
    if options.agents:
        return print_agents(options.searches)
    truths = {limit: long_run(np.random.default_rng([SEED, limit]), limit) for limit in LIMITS}
    print("| limit on p99 | in the long run | cells as they are | of 200 requests | of 2,000 requests |")
    print("|---|---|---|---|---|")
    for limit, truth in truths.items():
        rng = np.random.default_rng([SEED, limit, 1])
        times = (usual(limit), Times(0, 0, 200), Times(0, 0, 2000))
        cells = [of_cells(rng, limit, each) for each in times]
        capacities = " | ".join(f"{rate:.1f} ({rate / truth - 1:+.0%})" for rate in cells)
        print(f"| {limit:,} ms | {truth:.1f} | {capacities} |", flush=True)
    print()
    print(
        "| cells at most | limit on p99 | starts differ by | interval holds | value is off by | its width |"
    )
    print("|---|---|---|---|---|---|")
    for budget in BUDGETS:
        if options.cells not in (None, budget[0]):
            continue
        for limit in LIMITS:
            for spread in SPREADS:
                print(row(limit, truths[limit], spread, budget, options.searches), flush=True)


if __name__ == "__main__":
    main()
