"""Runs in, files out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.files import write_whole
from harness.reporting.figures import Figures, offline_figures, online_figures
from harness.reporting.html import render
from harness.reporting.markdown import summary
from harness.reporting.run import OnlineRun, Run, load_run, load_runs


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Render one or several run folders into the HTML file `out`, one chapter a run, and return it.

    Raises:
        UsageError: a run folder is missing, unfinished or broken.
    """
    loaded = load_runs(runs)
    write_whole(out, render([(run, figures(run)) for run in loaded]).encode())
    return out


def write_run_outputs(run: Path) -> Path:
    """Write `summary.md`, `figures/*.svg` and `report.html` into a run folder; returns the report.

    Raises:
        UsageError: the run folder is missing, unfinished or broken.
    """
    loaded = load_run(run)
    drawn = figures(loaded)
    write_whole(run / "summary.md", summary(loaded).encode())
    for plot in drawn.every:
        write_whole(run / "figures" / f"{plot.name}.svg", plot.svg.encode())
    write_whole(run / "report.html", render([(loaded, drawn)]).encode())
    return run / "report.html"


def figures(run: Run) -> Figures:
    """All figures of a run."""
    return online_figures(run) if isinstance(run, OnlineRun) else offline_figures(run)
