"""The nodes of a cluster: what each is, and what it did in a cell."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.schema.base import Strict
from harness.schema.calibration import Calibration
from harness.schema.machine_load import MachineLoad


class HostClock(Strict):
    """A node's monotonic clock against that of the machine that gives the commands, by round trips before and
    after a cell."""

    offset_s: float = Field(description="the node's time minus this machine's, before the cell")
    bound_ms: float = Field(description="the offset is wrong by at most this: half of what round trips leave")
    round_trip_ms: float = Field(description="the shortest one")
    drift_ppm: float = Field(description="how much faster the node's clock runs, in millionths")
    drift_bound_ppm: float = Field(description="the drift is wrong by at most this")
    start_bound_ms: float = Field(description="the node began the cell at most this early or late")


class Host(Strict):
    """One node of a run."""

    name: str
    address: str
    role: Literal["engine", "load", "both"]
    side: int = Field(description="nodes of one side measure together, sides beside each other")
    cores: int = Field(description="logical CPUs that the node may use")
    niceness: int = Field(description="of its worker processes; above 0 others on the node go first")
    calibration: Calibration | None = Field(None, description="of the client there; null: not measured")


class HostCell(Strict):
    """What a node that sends did in a cell."""

    name: str
    clients: list[int] = Field(description="its client processes, by their numbers in the load")
    requests: int
    clock: HostClock
    machine: MachineLoad | None = Field(None, description="what the node did meanwhile")
