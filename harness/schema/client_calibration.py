"""What the clients of a run can do."""

from __future__ import annotations

from harness.schema.calibration import Calibration
from harness.schema.run_info import OnlineRunInfo
from harness.schema.stored import checked


def client_calibration(info: OnlineRunInfo) -> Calibration | None:
    """What client processes of the run `info` sustain; None where that was not measured."""
    found = info.environment.get("calibration")
    if not isinstance(found, dict):
        return None
    return checked(found, Calibration, "the client's calibration in the run")
