"""What a cell cost: CPU seconds of the engine, and energy, for each output token and request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from harness.metrics.intervals import Estimate, level
from harness.metrics.notices import Machines
from harness.metrics.samples import Group
from harness.schema.machines import MachineLoad
from harness.schema.metric import MS

Cost = float | tuple[float, float] | None


def costs(repeats: Sequence[Group], machines: Machines) -> dict[str, Cost]:
    """Fields of a summary: sums over the cells, whole as they were sent, and what a token or a request took.

    None where it is not known of every cell, or nothing succeeded. Intervals are of several repeats.
    """
    cells = [_machines(group, machines) for group in repeats]
    tokens, requests = zip(*map(_succeeded, repeats), strict=True)
    cpu_s = [_sum(found, lambda machine: machine.engine_cpu_s) for found in cells]
    joules = [_sum(found, lambda machine: machine.joules) for found in cells]
    above = [_sum(found, lambda machine: machine.joules_above_idle) for found in cells]
    per_token, per_token_ci = _each(joules, tokens)
    above_per_token, above_per_token_ci = _each(above, tokens)
    per_request, per_request_ci = _each(joules, requests)
    cpu_per_token, _ = _each(cpu_s, tokens)
    return {
        "engine_cpu_s": _total(cpu_s),
        "joules": _total(joules),
        "joules_above_idle": _total(above),
        "cpu_ms_per_output_token": None if cpu_per_token is None else cpu_per_token * MS,
        "joules_per_output_token": per_token,
        "joules_per_output_token_ci": per_token_ci,
        "joules_above_idle_per_output_token": above_per_token,
        "joules_above_idle_per_output_token_ci": above_per_token_ci,
        "joules_per_request": per_request,
        "joules_per_request_ci": per_request_ci,
    }


def _machines(group: Group, machines: Machines) -> list[MachineLoad | None]:
    """Of the cells of a repeat."""
    return [machines.get(int(cell)) for cell in (group.whole or group).requests["cell"].unique()]


def _succeeded(group: Group) -> tuple[float, float]:
    """Output tokens of the successful requests of a repeat, and how many these are."""
    good = (group.whole or group).good
    return float(good["completion_tokens"].sum()), float(len(good))


def _each(
    spent: Sequence[float | None], count: Sequence[float]
) -> tuple[float | None, tuple[float, float] | None]:
    """What one of the things counted took, over all repeats, and its interval."""
    total = _total(spent)
    if total is None or not sum(count):
        return None, None
    value = total / sum(count)
    known = [s for s in spent if s is not None]
    if len(known) < 2 or not all(count):
        return value, None
    return value, level(Estimate(value, np.array(known) / np.array(count)))


def _total(spent: Sequence[float | None]) -> float | None:
    known = [number for number in spent if number is not None]
    return math.fsum(known) if known and len(known) == len(spent) else None


def _sum(cells: Sequence[MachineLoad | None], value: Callable[[MachineLoad], float | None]) -> float | None:
    return _total([None if machine is None else value(machine) for machine in cells])
