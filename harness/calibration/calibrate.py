"""The calibration: highest rates and timing errors, for one client process and for several."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import uvloop
from pydantic import ValidationError

from harness import paths
from harness.calibration.accuracy import measure_accuracy
from harness.calibration.ceiling import measure_ceiling
from harness.engines.placement import CpuSplit, physical_cores, split
from harness.files import now, write_json
from harness.schema.machines import Calibration, ClientCeiling, MachineKey, TimingError
from harness.telemetry.machine import cpu

FIRST_CHUNKS_PER_S, FIRST_REQUESTS_PER_S = 40_000.0, 2_000.0
#: Client processes of the second measurement if the client has no cores of its own.
SEVERAL = 2

ReportStatus = Callable[[str], None]


def calibrate(*, quick: bool, report_status: ReportStatus) -> Calibration:
    """Measure the client on this machine and store the result.

    Args:
        quick: One client process and short trials: about 20 s instead of about 50.
        report_status: Called with what is being measured.

    Raises:
        BenchError: The machine is too busy, or the client failed.
    """
    cpus = split(physical_cores())
    several = len(cpus.client) if cpus.client else SEVERAL
    counts = [1] if quick else sorted({1, several})
    ceilings: list[ClientCeiling] = []
    errors: list[TimingError] = []
    for processes in counts:
        report_status(f"ceiling of {processes} client {'process' if processes == 1 else 'processes'}")
        ceilings.append(_ceiling(processes, quick, cpus, ceilings))
        for concurrency in [8] if quick else [8, 32]:
            report_status(f"timing error of {processes}, {concurrency} requests in flight")
            errors.append(_error(processes, concurrency, quick, cpus))
    calibration = Calibration(
        machine=this_machine(),
        created=now(),
        quick=quick,
        ceilings=ceilings,
        errors=errors,
    )
    save(calibration)
    return calibration


def _ceiling(processes: int, quick: bool, cpus: CpuSplit, before: list[ClientCeiling]) -> ClientCeiling:
    start = (FIRST_CHUNKS_PER_S, FIRST_REQUESTS_PER_S)
    if before:
        start = (before[-1].chunks_per_s / 2, before[-1].requests_per_s / 2)
    return measure_ceiling(processes=processes, seconds=0.5 if quick else 1.0, cpus=cpus, start=start)


def _error(processes: int, concurrency: int, quick: bool, cpus: CpuSplit) -> TimingError:
    accuracy = measure_accuracy(
        processes=processes,
        concurrency=concurrency,
        requests=64 if quick else 200,
        tokens=16 if quick else 32,
        cpus=cpus,
    )
    return accuracy.error(processes, concurrency)


PATH = paths.CACHE / "calibration.json"


def this_machine() -> MachineKey:
    """The machine and software that this process runs on."""
    return MachineKey(
        cpu=str(cpu()["model"]),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=platform.python_version(),
        uvloop=uvloop.__version__,
    )


def load(path: Path = PATH) -> Calibration | None:
    """The stored calibration, if there is one for this machine."""
    try:
        calibration = Calibration.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return calibration if calibration.machine == this_machine() else None


def save(calibration: Calibration, path: Path = PATH) -> None:
    """Store `calibration`, replacing an older one."""
    write_json(path, calibration)
