"""Runs and loads that tests measure, as their folder and results or tables; what clients sustain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.calibration.calibrate import this_machine
from harness.loadgen.load_plan import LoadResult
from harness.records.cell import CellIdentity, CellRecords, Expected, cell_records, read_responses
from harness.runs import online
from harness.runs.events import Event
from harness.runs.reader import Run
from harness.schema.machines import Calibration, ClientCeiling
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults


def ignore(event: Event) -> None:
    """Take an event of a run."""


def made_once(factory: pytest.TempPathFactory, write: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes a run once for each name and other arguments; no test changes the run."""
    runs: dict[str, Path] = {}

    def make(name: str, *given: Any, **settings: Any) -> Path:
        key = f"{name} {given} {sorted(settings.items())}"
        if key not in runs:
            runs[key] = write(factory.mktemp("runs") / name, *given, **settings)
        return runs[key]

    return make


def run_online(
    settings: OnlineSettings,
    command: Sequence[str] = ("bench",),
    notify: Any = ignore,
    *plans: Any,
    **given: Any,
) -> tuple[Path, OnlineResults]:
    return _parts(online.run_online(settings, [*command], notify, *plans, **given))


def resume_online(folder: Path, notify: Any = ignore) -> tuple[Path, OnlineResults]:
    return _parts(online.resume_online(folder, notify))


def results_so_far(folder: Path) -> OnlineResults | None:
    run = online.results_so_far(folder)
    return None if run is None else run.results


def _parts(run: Run) -> tuple[Path, OnlineResults]:
    return run.path, run.results


def read_cell(result: LoadResult, expected: Sequence[Expected], identity: CellIdentity) -> CellRecords:
    """Parse every response of a load; a request that gives another number of tokens failed."""
    wanted = {raw.index: expected[raw.index].wanted(True) for raw in result.responses}
    return cell_records(read_responses(result.responses, result.t0, wanted), expected, identity)


def calibration_of(ceilings: dict[int, tuple[float, float]]) -> Calibration:
    """Return chunks and requests a second that each of so many client processes sustains."""
    return Calibration(
        machine=this_machine(),
        created="now",
        quick=True,
        ceilings=[
            ClientCeiling(
                processes=processes, chunks_per_s=chunks, chunks_per_cpu_s=chunks, requests_per_s=requests,
                limit="client",
            )
            for processes, (chunks, requests) in ceilings.items()
        ],
        errors=[],
    )  # fmt: skip
