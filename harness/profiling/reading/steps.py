"""Boundaries between the steps of an engine.

By the ranges around each forward where the engine marks them (rules.STEP_RANGES); else by its CUDA graph
launches, of which each is a decode step and what is launched between two is of the first; else by the gaps of
the device. A step reaches from its own start to the next one's, so that steps divide the time among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.profiling.reading.rules import WHOLE_STEPS, StepRange, step_range
from harness.profiling.reading.timeline import Floats, Spans, Timeline
from harness.schema.profile import StepKind

#: A gap of the device ends a step when it is longer than this and than GAP_FACTOR times the median gap.
GAP_US, GAP_FACTOR = 50.0, 20.0
_GRAPH_LAUNCH = ("cudaGraphLaunch", "cuGraphLaunch")


@dataclass(frozen=True)
class Steps:
    """N whole steps; the time after the last start belongs to none.

    Attributes:
        edges: (N + 1,) µs on the host's side, ascending: step i is from edge i to edge i + 1.
        forward_end: (N,) end of the range around its forward; nan where there is none.
        kinds: (N,)
        batches: (N,) requests; None if unknown.
        by: how they were found, in words.
        thread: that of the steps; None where they were found on the device.
    """

    edges: Floats
    forward_end: Floats
    kinds: list[StepKind]
    batches: list[int | None]
    by: str
    thread: int | None

    def __len__(self) -> int:
        return len(self.kinds)


def find_steps(timeline: Timeline) -> Steps:
    """The steps of a profile; none if they cannot be distinguished."""
    return _by_ranges(timeline) or _by_graphs(timeline) or _by_gaps(timeline.device)


def _by_ranges(timeline: Timeline) -> Steps | None:
    step_ranges = {number: step for number, name in enumerate(timeline.names) if (step := step_range(name))}
    ranges = timeline.ranges.take(np.isin(timeline.ranges.name, list(step_ranges)))
    if len(ranges) < 2:
        return None
    threads, counts = np.unique(ranges.thread, return_counts=True)
    thread = int(threads[counts.argmax()])
    ranges = _outermost(ranges.take(ranges.thread == thread))
    forwards: list[StepRange] = [step_ranges[number] for number in ranges.name.tolist()]
    names = sorted({timeline.names[number].partition("(")[0] for number in ranges.name.tolist()})
    by = f"ranges {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
    groups = _whole_steps(timeline, ranges)
    if len(groups) < 2:
        return None
    first, last = [group[0] for group in groups], [group[-1] for group in groups[:-1]]
    told_kinds = [{forwards[i].kind for i in group} for group in groups[:-1]]
    kinds: list[StepKind] = ["prefill" if "prefill" in kind else "decode" for kind in told_kinds]
    batches = [forwards[group[0]].batch for group in groups[:-1]]
    return Steps(ranges.start[first], ranges.end[last], kinds, batches, by, thread)


def _whole_steps(timeline: Timeline, forwards: Spans) -> list[list[int]]:
    """Positions of the forwards of each step: those inside one range around a whole step, else one each."""
    numbers = [number for number, name in enumerate(timeline.names) if name in WHOLE_STEPS]
    around = timeline.ranges.take(np.isin(timeline.ranges.name, numbers))
    if not len(around):
        return [[position] for position in range(len(forwards))]
    step = np.searchsorted(around.start, forwards.start, side="right") - 1
    groups: dict[int, list[int]] = {}
    for position, number in enumerate(step.tolist()):
        groups.setdefault(number, []).append(position)
    groups.pop(-1, None)  # of a step that began before the capture
    return list(groups.values())


def _outermost(ranges: Spans) -> Spans:
    """Without those inside another: a forward may be marked twice."""
    ends = np.concatenate([[-np.inf], np.maximum.accumulate(ranges.end)[:-1]])
    return ranges.take(ranges.start >= ends)


def _by_graphs(timeline: Timeline) -> Steps | None:
    launches = [number for number, name in enumerate(timeline.names) if name.startswith(_GRAPH_LAUNCH)]
    calls = timeline.calls.take(np.isin(timeline.calls.name, launches))
    if len(calls) < 2:
        return None
    count = len(calls) - 1
    kinds: list[StepKind] = ["decode"] * count
    by = "launches of CUDA graphs: a step without one is counted with the step before it"
    return Steps(calls.start, np.full(count, np.nan), kinds, [None] * count, by, int(calls.thread[0]))


def _by_gaps(device: Spans) -> Steps:
    ends = np.maximum.accumulate(device.end) if len(device) else np.zeros(0)
    gaps = device.start[1:] - ends[:-1]
    idle = gaps[gaps > 0]
    limit = max(GAP_US, GAP_FACTOR * float(np.median(idle))) if len(idle) else GAP_US
    edges = device.start[1:][gaps > limit]
    count = max(0, len(edges) - 1)
    by = f"gaps of the device longer than {limit:.0f} µs: prefills and decodes cannot be distinguished"
    kinds: list[StepKind] = ["decode"] * count
    return Steps(edges if count else np.zeros(0), np.full(count, np.nan), kinds, [None] * count, by, None)
