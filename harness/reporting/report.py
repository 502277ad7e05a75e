"""Runs in, files out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

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
    _write(out, render([(run, figures(run)) for run in loaded]))
    return out


def write_run_outputs(run: Path) -> Path:
    """Write `summary.md`, `figures/*.svg` and `report.html` into a run folder; returns the report.

    Raises:
        UsageError: the run folder is missing, unfinished or broken.
    """
    loaded = load_run(run)
    drawn = figures(loaded)
    _write(run / "summary.md", summary(loaded))
    for plot in drawn.every:
        _write(run / "figures" / f"{plot.name}.svg", plot.svg)
    _write(run / "report.html", render([(loaded, drawn)]))
    return run / "report.html"


def figures(run: Run) -> Figures:
    """All figures of a run."""
    return online_figures(run) if isinstance(run, OnlineRun) else offline_figures(run)


def _write(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
