"""The stored calibration of this machine; replaced when the machine or its software changes."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import uvloop
from pydantic import ValidationError

from harness import paths
from harness.files import write_json
from harness.schema.calibration import Calibration, MachineKey
from harness.telemetry.machine import cpu

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
        found = Calibration.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return found if found.machine == this_machine() else None


def save(calibration: Calibration, path: Path = PATH) -> None:
    """Store `calibration`, replacing an older one."""
    write_json(path, calibration)
