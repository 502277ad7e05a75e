"""The limits of the load client on a machine: `calibration.json` in the cache."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.schema.base import Strict


class MachineKey(Strict):
    """Everything that the client's speed depends on. Another value needs another calibration."""

    cpu: str
    cores: int = Field(description="logical CPUs that this process may use")
    kernel: str
    python: str
    uvloop: str


class ClientCeiling(Strict):
    """The most that each of `processes` client processes sustains while all of them run."""

    processes: int
    chunks_per_s: float = Field(description="chunks a second that are still read one by one")
    chunks_per_cpu_s: float = Field(description="reads for each second of CPU time spent")
    requests_per_s: float = Field(description="streamed requests a second that are still sent on time")
    limit: Literal["client", "server"] = Field(
        description="what gave way: the client, or the mock server, and then the client can do more"
    )


class Spread(Strict):
    """Median and 99th percentile, in ms."""

    p50: float
    p99: float


class TimingError(Strict):
    """Measured minus true times of the mock server, request by request and token by token."""

    processes: int
    concurrency: int
    requests: int
    ttft_error_ms: Spread
    itl_error_ms: Spread
    submit_lag_ms: Spread


class Calibration(Strict):
    """The client on one machine."""

    machine: MachineKey
    created: str = Field(description="ISO 8601, UTC")
    quick: bool
    ceilings: list[ClientCeiling] = Field(min_length=1, description="by number of client processes")
    errors: list[TimingError]

    def ceiling(self, processes: int) -> ClientCeiling:
        """The ceiling measured with the most processes that are not more than `processes`."""
        fitting = [ceiling for ceiling in self.ceilings if ceiling.processes <= processes]
        return max(fitting or self.ceilings, key=lambda ceiling: ceiling.processes)
