"""How far the repeats of one engine spread, beside what intervals of one repeat assume.

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
    """Of every engine, load and compared statistic of a run, by kind."""
    for label, cells in run.cells.items():
        for load, repeats in cells.items():
            found = run.estimates(label, load)
            for key in COMPARED:
                estimate = found.get(key)
                if estimate is None or estimate.missing or not estimate.has_log:
                    continue
                spread = estimate.spread(log=True)
                if spread is not None:
                    where = f"{' '.join(dict.fromkeys(key))}, {label}, {load}, {len(repeats)} repeats"
                    yield KINDS.get(key[1], "rate"), (spread, f"{run.path.name}: {where}")


def largest(paths: Sequence[Path]) -> dict[str, list[Seen]]:
    """The spreads of each kind, the largest first."""
    found: dict[str, list[Seen]] = {"rate": [], "p50": [], "p90": [], "p99": []}
    for path in paths:
        try:
            run = StoredRun.read(path)
        except UsageError:
            continue
        for kind, seen in spreads(run):
            found[kind].append(seen)
    return {kind: sorted(seen, reverse=True) for kind, seen in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    print("| kind | cells | median | largest | where |\n|---|---|---|---|---|")
    for kind, seen in largest(parser.parse_args().runs).items():
        if seen:
            (top, where), middle = seen[0], seen[len(seen) // 2][0]
            print(f"| {kind} | {len(seen)} | {middle:.1%} | {top:.1%} | {where} |")


if __name__ == "__main__":
    main()
