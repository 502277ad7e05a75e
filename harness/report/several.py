"""Several runs in one report: all of them in a table, and what the later ones change against the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.compare.compare_runs import compare_runs
from harness.report.tables.differences import caveats, difference_tables
from harness.report.tables.repeats import all_runs_table
from harness.report.tables.table import Table
from harness.runs.reader import OnlineRun, Run


@dataclass(frozen=True)
class Change:
    """Run `b` against run `a`: names, tables of differences, how to read them, and what is not alike."""

    a: str
    b: str
    tables: Sequence[Table]
    caveats: Sequence[str]
    obstacles: Sequence[str]


def overview(runs: Sequence[Run]) -> Table | None:
    """Every engine of the online runs, numbered from 1, at every load; None of less than two such runs."""
    online = {number: run.pooled for number, run in enumerate(runs, 1) if isinstance(run, OnlineRun)}
    return all_runs_table(online) if len(online) > 1 else None


def changes(runs: Sequence[Run]) -> list[Change]:
    """Every online run against the first one, for each engine that both have; none of a single run.

    What differs other than the engines (the trace, the machine, the lengths, an invalid cell) is reported,
    and nothing is compared then.
    """
    online = [run for run in runs if isinstance(run, OnlineRun)]
    found = []
    for run in online[1:]:
        if run.path.resolve() == online[0].path.resolve():
            continue
        results = compare_runs(online[0].path, run.path, allowed=("engines", "scales", "concurrency"))
        found.append(
            Change(
                online[0].path.name,
                run.path.name,
                difference_tables(results),
                caveats(results) if results.differences else [],
                [obstacle.reason for obstacle in results.obstacles],
            )
        )
    return found
