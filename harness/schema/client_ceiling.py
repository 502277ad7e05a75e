"""What the clients of a run can do."""

from __future__ import annotations

from harness.schema.calibration import Calibration, ClientCeiling
from harness.schema.results import OnlineRunInfo
from harness.schema.stored import checked


def client_ceiling(info: OnlineRunInfo) -> ClientCeiling | None:
    """What one client process of the run `info` sustains; None where that was not measured."""
    found, clients = info.environment.get("calibration"), info.settings.clients
    if not isinstance(found, dict) or not isinstance(clients, int):
        return None
    return checked(found, Calibration, "the client's calibration in the run").ceiling(clients)
