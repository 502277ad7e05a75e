"""Machines of a run: nodes, their clients' limits and prices, and what each did while a cell was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from harness.errors import UsageError
from harness.schema.base import Strict, first_fault
from harness.schema.files import read_yaml


def sum_known(numbers: Sequence[float | None]) -> float | None:
    """Return the sum of numbers, of integers a whole one; None where one is unknown, or there is none."""
    values = [number for number in numbers if number is not None]
    if not values or len(values) < len(numbers):
        return None
    return sum(values) if isinstance(values[0], int) else math.fsum(values)


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


class GpuLoad(Strict):
    """One GPU over a cell. A value that the device does not report is null."""

    sm_clock_mhz_median: float | None = None
    sm_clock_mhz_min: float | None = None
    temperature_c_max: float | None = None
    power_w_mean: float | None = None
    joules: float | None = Field(None, description="by the device's own energy counter")
    throttled: dict[str, float] = Field({}, description="share of samples with clocks held down, by reason")


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
    engine_cpu_s: float | None = Field(None, description="of the engine's processes; null: not known")
    cpu_joules: float | None = Field(
        None, description="by the processors' own energy counters (RAPL); null where they cannot be read"
    )
    idle_watts: float | None = Field(None, description="by the same counters before the engine started")
    gpus_busy_before: list[float | None] = Field(
        [],
        description="share of the time in which each GPU computed before the engine was started; null: not "
        "reported",
    )
    power: list[Power] = Field([], description="over the cell, by the same counters")
    foreign_cores_mean: float = Field(description="cores that other processes kept busy, on average")
    foreign_cores_max: float = Field(description="the same in the busiest interval between two samples")
    steal_share: float = Field(description="of the CPUs' time, what the hypervisor gave to others")
    cpu_mhz_median: float | None = None
    cpu_mhz_min: float | None = None
    gpus: list[GpuLoad] = Field([])

    @property
    def joules(self) -> float | None:
        """Energy of the GPUs by their own counters, or without any of the processors; None: unknown."""
        return sum_known([gpu.joules for gpu in self.gpus] or [self.cpu_joules])

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


HINT = "write it like `gpus: {NVIDIA H200: 3.5}` for a GPU hour, or `machine: 0.4` for a machine hour"
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]  # strict: true is not 1


class Prices(Strict):
    """A price file. A run on GPUs pays for its GPUs, another one for the machine."""

    currency: str = Field("$", min_length=1, max_length=8)
    gpus: dict[Annotated[str, Field(min_length=1)], Amount] = Field(
        {}, description="of an hour, by the GPU's name or a part of it; the longest counts"
    )
    machine: Amount | None = Field(None, description="of an hour of the whole machine")

    @model_validator(mode="after")
    def _some(self) -> Prices:
        if not self.gpus and self.machine is None:
            raise ValueError("it has neither gpus nor machine")
        return self


class Hourly(Strict):
    """The price of an hour of one run's machine."""

    amount: float
    currency: str
    of: str = Field(description="what is paid for: `2 × NVIDIA H200`")


def read_prices(path: Path) -> Prices:
    """Read a price file, YAML.

    Raises:
        UsageError: It cannot be read, or says something else.
    """
    content = read_yaml(path, HINT)
    try:
        return Prices.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path}: {first_fault(error)}", HINT) from None


def gpu_names(environment: Mapping[str, Any], device: str) -> list[str]:
    """Return the names of a machine's GPUs; none where a run does not use them."""
    return [str(gpu.get("name", "GPU")) for gpu in environment.get("gpus") or []] if device == "cuda" else []


def with_counts(names: Sequence[str]) -> str:
    """Return `8 × NVIDIA H200`: each name once."""
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def hourly(prices: Prices, environment: Mapping[str, Any], device: str) -> Hourly:
    """Return the price of an hour of a run on that machine.

    Args:
        environment: The run's hardware and software.

    Raises:
        UsageError: The file has no price for it.
    """
    if not (names := gpu_names(environment, device)):
        if prices.machine is None:
            raise UsageError(
                "the prices have none for a machine, and the run used no GPU", "add `machine: 0.4`"
            )
        return Hourly(amount=prices.machine, currency=prices.currency, of="the machine")
    amount = math.fsum(_of_gpu(prices, name) for name in names)
    return Hourly(amount=amount, currency=prices.currency, of=with_counts(names))


def _of_gpu(prices: Prices, name: str) -> float:
    fitting = [priced for priced in prices.gpus if priced.casefold() in name.casefold()]
    if not fitting:
        priced = f"known: {', '.join(prices.gpus)}; " if prices.gpus else ""
        raise UsageError(f"the prices have none for {name}", f"{priced}add it under gpus")
    return prices.gpus[max(fitting, key=len)]
