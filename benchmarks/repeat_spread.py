"""Spread of the repeats of one engine, beside what intervals of one repeat assume.

    python -m benchmarks.repeat_spread reports/*/

For each kind of statistic, the largest standard deviation of its logarithm between the repeats of an engine
at a load, and where it was; statistics as they are compared, of cells with two repeats or more that have
enough requests. Folders without raw tables or repeats are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.compare.stored_run import StoredRun
from harness.errors import UsageError
from harness.metrics.estimates import COMPARED

#: Of statistics, as far as their spread goes: a mean of latencies goes with p50, p95 with p99.
KINDS = {"p50": "p50", "mean": "p50", "p90": "p90", "p95": "p99", "p99": "p99"}
#: A spread and where it was seen: run, engine, load, metric and statistic.
Seen = tuple[float, str]


def spreads(run: StoredRun) -> Iterator[tuple[str, Seen]]:
    """Yield the spread of every engine, load and compared statistic of a run, with its kind."""
    for label, cells in run.cells.items():
        for load, repeats in cells.items():
            estimates = run.estimates(label, load)
            for key in COMPARED:
                estimate = estimates.get(key)
                if estimate is None or estimate.missing or not estimate.has_log:
                    continue
                spread = estimate.spread(log=True)
                if spread is not None:
                    where = f"{' '.join(dict.fromkeys(key))}, {label}, {load}, {len(repeats)} repeats"
                    yield KINDS.get(key[1], "rate"), (spread, f"{run.path.name}: {where}")


def largest(paths: Sequence[Path]) -> dict[str, list[Seen]]:
    """The spreads of each kind, the largest first."""
    spreads_by_kind: dict[str, list[Seen]] = {"rate": [], "p50": [], "p90": [], "p99": []}
    for path in paths:
        try:
            run = StoredRun.read(path)
        except UsageError:
            continue
        for kind, spread in spreads(run):
            spreads_by_kind[kind].append(spread)
    return {kind: sorted(spread, reverse=True) for kind, spread in spreads_by_kind.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    print("| kind | cells | median | largest | where |\n|---|---|---|---|---|")
    for kind, kind_spreads in largest(parser.parse_args().runs).items():
        if kind_spreads:
            (top, where), middle = kind_spreads[0], kind_spreads[len(kind_spreads) // 2][0]
            print(f"| {kind} | {len(kind_spreads)} | {middle:.1%} | {top:.1%} | {where} |")


if __name__ == "__main__":
    main()
