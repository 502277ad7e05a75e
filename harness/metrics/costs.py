"""What a cell cost: CPU seconds of the engine, and energy, for each output token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.metrics.definitions import succeeded
from harness.metrics.notices import Machines
from harness.metrics.samples import Group
from harness.schema.machine_load import MachineLoad
from harness.schema.metric import MS


def costs(repeats: Sequence[Group], machines: Machines) -> dict[str, float | None]:
    """Fields of a summary: sums over the cells, whole as they were sent, and what an output token took of
    them. None where it is not known of every cell, or no token came."""
    wholes = [(group.whole or group).requests for group in repeats]
    cells = [machines.get(int(cell)) for requests in wholes for cell in requests["cell"].unique()]
    tokens = sum(float(requests.loc[succeeded(requests), "completion_tokens"].sum()) for requests in wholes)
    cpu_s = _sum(cells, lambda machine: machine.engine_cpu_s)
    joules = _sum(cells, lambda machine: machine.joules)
    return {
        "engine_cpu_s": cpu_s,
        "joules": joules,
        "cpu_ms_per_output_token": None if cpu_s is None or not tokens else cpu_s * MS / tokens,
        "joules_per_output_token": None if joules is None or not tokens else joules / tokens,
    }


def _sum(cells: Sequence[MachineLoad | None], value: Callable[[MachineLoad], float | None]) -> float | None:
    found = [None if machine is None else value(machine) for machine in cells]
    known = [number for number in found if number is not None]
    return sum(known) if known and len(known) == len(found) else None
