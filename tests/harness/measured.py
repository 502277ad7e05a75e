"""Runs that tests measure, as their folder and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.runs import online
from harness.runs.reader import Run
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults


def run_online(
    settings: OnlineSettings, command: list[str], notify: Any, *plans: Any, **given: Any
) -> tuple[Path, OnlineResults]:
    return _parts(online.run_online(settings, command, notify, *plans, **given))


def resume_online(folder: Path, notify: Any) -> tuple[Path, OnlineResults]:
    return _parts(online.resume_online(folder, notify))


def results_so_far(folder: Path) -> OnlineResults | None:
    run = online.results_so_far(folder)
    return None if run is None else run.results


def _parts(run: Run) -> tuple[Path, OnlineResults]:
    return run.path, run.results
