"""`bench` in a process of its own, on a machine that other tests keep busy.

What `quick_runs` and `few_figures` do in a test's process, this file, run as a program, does in its own.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from harness.report.figures import Plot

Figures = Literal["all", "few"]


def bench_command(*arguments: str, figures: Figures = "all") -> list[str]:
    """The command that runs `bench` with these arguments; of `few` figures only the first is drawn."""
    return [sys.executable, "-P", __file__, figures, *arguments]


def quicken() -> None:
    """Before a cell this process waits for a moment, and its engines, beside other tests, start as quickly as
    these."""
    from harness.engines.process import guard
    from harness.runs import cell_runner

    cell_runner.MEASURED_DELAY_S = cell_runner.WAITING_S = 0.1
    guard.SHARING_NICENESS = 0


def first_figure() -> Callable[..., Iterator[Plot]]:
    """Stands for `run_figures.figures`: of a run's figures only the first is drawn."""
    from harness.report.figures import figures

    return lambda run, charts: islice(figures(run, charts), 1)


def main() -> None:
    figures = sys.argv.pop(1)
    quicken()
    if figures == "few":
        from harness.report import figures as run_figures

        run_figures.figures = first_figure()
    runpy.run_module("harness.cli.app", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
