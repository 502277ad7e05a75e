"""Whether two profilers saw the same: the time of kernels in steps of which both captured some."""

from __future__ import annotations

import math
from statistics import fmean

from harness.profiling.reading.figures import step_works
from harness.profiling.reading.timeline import Timeline
from harness.schema.profile import Agreement

#: Where a kernel's name continues with what the two tools write in different ways.
_ENDS = "<("
_UNNAMED = ("(anonymous namespace)::", "<unnamed>::", "void ")


#: Busy µs of steps by sort: those of the same kernels, whatever their order.
Sorts = dict[tuple[str, ...], list[float]]


def agreement(label: str, torch: Sorts, nsys: Sorts) -> Agreement | None:
    """Over steps of the same kernels, as many of each sort as both have; None where there are none."""
    counts = {names: min(len(torch[names]), len(nsys[names])) for names in torch if names in nsys}
    if not counts:
        return None
    torch_us, nsys_us = (
        math.fsum(count * fmean(found[names]) for names, count in counts.items()) for found in (torch, nsys)
    )
    return Agreement(
        label=label,
        steps=sum(counts.values()),
        kernels=sum(count * len(names) for names, count in counts.items()),
        torch_ms=torch_us * 1e-3,
        nsys_ms=nsys_us * 1e-3,
    )


def sorts(timeline: Timeline) -> Sorts:
    """Of the whole steps of a profile."""
    found: Sorts = {}
    for work in step_works(timeline):
        names = tuple(sorted(_plain(name) for name in work.names))
        found.setdefault(names, []).append(work.busy_us)
    return found


def _plain(name: str) -> str:
    """A kernel's name without its template arguments and parameters."""
    for part in _UNNAMED:
        name = name.replace(part, "")
    return name[: min((at for end in _ENDS if (at := name.find(end)) >= 0), default=len(name))]
