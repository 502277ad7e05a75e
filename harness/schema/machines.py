"""Machines of a run: the nodes of a cluster, and what each did while a cell was measured."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from harness.schema.base import Strict
from harness.schema.calibration import Calibration


class GpuLoad(Strict):
    """One GPU over a cell. A value that the device does not report is null."""

    sm_clock_mhz_median: float | None = None
    sm_clock_mhz_min: float | None = None
    temperature_c_max: float | None = None
    power_w_mean: float | None = None
    joules: float | None = Field(None, description="by the device's own energy counter")
    throttled: dict[str, float] = Field(
        default_factory=dict, description="share of the samples in which clocks were held down, by reason"
    )


class Power(Strict):
    """Power that was taken in a part of a cell. Times are in s since the cell's start."""

    begin: float
    end: float
    watts: float


class MachineLoad(Strict):
    """The CPUs that this process may use, and the GPUs, from a cell's first request to its last answer."""

    seconds: float
    samples: int
    cpus: int
    own_cpu_s: float = Field(description="CPU seconds of this process and all below it, engines included")
    engine_cpu_s: float | None = Field(
        None, description="those of the engine's processes; null: a server that runs already"
    )
    cpu_joules: float | None = Field(
        None, description="by the processors' own energy counters (RAPL); null where they cannot be read"
    )
    idle_watts: float | None = Field(
        None, description="by the same counters before the engine was started; null: not known"
    )
    gpus_busy_before: list[float | None] = Field(
        default_factory=list,
        description="share of the time in which each GPU computed before the engine was started; null: not "
        "reported",
    )
    power: list[Power] = Field(
        default_factory=list,
        description="over the cell, by the same counters; empty where they cannot be read",
    )
    foreign_cores_mean: float = Field(description="cores that other processes kept busy, on average")
    foreign_cores_max: float = Field(description="the same in the busiest interval between two samples")
    steal_share: float = Field(description="of the CPUs' time, what the hypervisor gave to others")
    cpu_mhz_median: float | None = None
    cpu_mhz_min: float | None = None
    gpus: list[GpuLoad] = Field(default_factory=list)

    @property
    def joules(self) -> float | None:
        """Energy of the GPUs by their own counters, or without any of the processors; None: unknown."""
        counters = [gpu.joules for gpu in self.gpus] or [self.cpu_joules]
        reported = [joules for joules in counters if joules is not None]
        return math.fsum(reported) if len(reported) == len(counters) else None

    @property
    def joules_above_idle(self) -> float | None:
        """Energy beyond that of the idle machine in the same time; None: unknown."""
        if self.joules is None or self.idle_watts is None:
            return None
        return max(0.0, self.joules - self.idle_watts * self.seconds)


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
    """Work of a node that sends in a cell."""

    name: str
    clients: list[int] = Field(description="its client processes, by their numbers in the load")
    requests: int
    clock: HostClock
    machine: MachineLoad | None = Field(None, description="what the node did meanwhile")
