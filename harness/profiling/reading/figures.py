"""Figures of a profile: what a step costs, and which part of it what takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import numpy as np
import numpy.typing as npt

from harness.profiling.reading.rules import WHOLE_STEPS, StepRange, categorize, component, step_range
from harness.profiling.reading.timeline import Floats, Ints, Spans, Timeline
from harness.schema.profile import (
    Category,
    Component,
    ComponentFigures,
    KernelFigures,
    ProfileFigures,
    StepFigures,
    StepKind,
    Tool,
)

MS = 1e-3
SHOWN_KERNELS = 12
_NO_STEP = "no whole step was found: the capture is too short, or nothing marks steps"
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True)
class _Work:
    """Spans that make up the steps: kernels and copies, or the operators of a CPU.

    Attributes:
        spans: (S,)
        at: (S,) µs at which the host began each: it decides to which step it belongs.
        busy: (S,) µs that each adds to the busy time.
        alone: (S,) µs of each alone: kernel time, or self time of an operator.
    """

    spans: Spans
    at: Floats
    busy: Floats
    alone: Floats


def figures(timeline: Timeline, tool: Tool, label: str) -> ProfileFigures:
    """All figures of a profile. Times of steps are means over the whole steps in it.

    On a GPU a kernel belongs to the step in which the host launched it, and a step takes from the end of the
    last kernel before it to the end of its own last one: a host that is steps ahead changes nothing. Where
    kernels overlap, the one that began first has the time. On a CPU the operators of the thread that runs the
    steps count, each with its self time: without the operators inside it.
    """
    steps = find_steps(timeline)
    cuda = len(timeline.device) > 0
    every = _device(timeline) if cuda else _host(timeline, None)
    work = every if cuda else _host(timeline, steps.thread)
    step = _step_of(work, steps)
    inside = (step >= 0) & (step < len(steps))
    period = _device_periods(work, step, steps) if cuda else np.diff(steps.edges)
    gaps = _device_gaps(work, step, len(steps)) if cuda else _host_gaps(steps)
    by_kind: dict[StepKind, StepFigures] = {}
    kinds = np.array(steps.kinds)
    for kind in get_args(StepKind):
        which = np.flatnonzero(kinds == kind)
        if len(which):
            chosen = inside & np.isin(step, which)
            by_kind[kind] = _step_figures(timeline, work, chosen, period[which], gaps[which], steps, which)
    whole = float(period.sum())
    spans = [kind for kind in (timeline.ops, timeline.calls, timeline.ranges, timeline.device) if len(kind)]
    return ProfileFigures(
        tool=tool,
        label=label,
        device="cuda" if cuda else "cpu",
        steps_by=steps.by,
        steps=by_kind,
        capture_ms=float(max(kind.end.max() for kind in spans) - min(kind.start.min() for kind in spans))
        * MS,
        busy_share=float(work.busy[inside].sum()) / whole if whole else 0.0,
        components=_components(timeline),
        kernels=_kernels(timeline, every),
        remarks=[] if by_kind else [_NO_STEP],
    )


def step_works(timeline: Timeline) -> list[tuple[list[str], float]]:
    """Return, of every whole step in which the GPU ran kernels, their names and the µs in which any ran.

    Copies do not count.
    """
    steps, work = find_steps(timeline), _device(timeline)
    step = _step_of(work, steps)
    copies = [n for n, name in enumerate(timeline.names) if categorize(name) == "memory copies"]
    step[np.isin(work.spans.name, copies)] = -1
    order = np.argsort(step, kind="stable")
    bounds = np.searchsorted(step[order], np.arange(len(steps) + 1))
    parts = (order[start:end] for start, end in pairwise(bounds.tolist()) if end > start)
    return [
        ([timeline.names[name] for name in work.spans.name[part]], float(work.busy[part].sum()))
        for part in parts
    ]


def _step_of(work: _Work, steps: Steps) -> Ints:
    """(S,) the step of each span; −1 before the first, the number of steps after the last."""
    return np.searchsorted(steps.edges, work.at, side="right") - 1


def _device(timeline: Timeline) -> _Work:
    device = timeline.device
    return _Work(device, _launched(timeline), exclusive(device), device.end - device.start)


def _launched(timeline: Timeline) -> Floats:
    """When the host launched each device span; if that is unknown, when it began."""
    calls, device = timeline.calls, timeline.device
    launches = calls.take(calls.link >= 0)
    if not len(launches):
        return device.start
    order = np.argsort(launches.link, kind="stable")
    link, start = launches.link[order], launches.start[order]
    position = np.minimum(np.searchsorted(link, device.link), len(link) - 1)
    return np.where(link[position] == device.link, start[position], device.start)


def _host(timeline: Timeline, thread: int | None) -> _Work:
    """The operators of one thread, or of all, and the ranges that mark a kernel of a category."""
    kernels = [number for number, name in enumerate(timeline.names) if categorize(name) != "other"]
    spans = _merge(timeline.ops, timeline.ranges.take(np.isin(timeline.ranges.name, kernels)))
    if thread is not None:
        spans = spans.take(spans.thread == thread)
    times = self_times(spans)
    return _Work(spans, spans.start, times, times)


def _device_periods(work: _Work, step: Ints, steps: Steps) -> Floats:
    """(N,) µs from the last end of a kernel of the step before to that of each step's own."""
    host, inside = np.diff(steps.edges), (step >= 0) & (step < len(steps))
    if not inside.any():
        return host
    ends = np.full(len(steps), -np.inf)
    np.maximum.at(ends, step[inside], work.spans.end[inside])
    before = work.spans.end[step < 0]
    first = before.max() if len(before) else min(steps.edges[0], ends[np.isfinite(ends)][0] - host[0])
    periods: Floats = np.diff(np.maximum.accumulate(np.concatenate([[first], ends])))
    return periods


def _device_gaps(work: _Work, step: Ints, count: int) -> Floats:
    """(N,) idle µs before the first kernel of each step."""
    ends = np.concatenate([[np.nan], np.maximum.accumulate(work.spans.end)[:-1]])
    gaps = np.full(count, np.nan)
    inside = np.flatnonzero((step >= 0) & (step < count))
    first_steps, firsts = np.unique(step[inside], return_index=True)
    first = inside[firsts]
    gaps[first_steps] = np.maximum(0.0, work.spans.start[first] - ends[first])
    return gaps


def _host_gaps(steps: Steps) -> Floats:
    """(N,) µs from the end of the forward before to the start of this one."""
    if not len(steps):
        return np.zeros(0)
    return np.concatenate([[np.nan], steps.edges[1:-1] - steps.forward_end[:-1]])


def _step_figures(
    timeline: Timeline,
    work: _Work,
    chosen: npt.NDArray[np.bool_],
    period: Floats,
    gaps: Floats,
    steps: Steps,
    which: Ints,
) -> StepFigures:
    n = len(which)
    category = np.array([CATEGORIES.index(categorize(name)) for name in timeline.names], np.int64)
    by_category = np.bincount(category[work.spans.name[chosen]], work.busy[chosen], minlength=len(CATEGORIES))
    count = int(chosen.sum())
    batches = [batch for i in which.tolist() if (batch := steps.batches[i]) is not None]
    gaps = gaps[np.isfinite(gaps)]
    return StepFigures(
        n=n,
        period_ms=float(period.mean()) * MS,
        period_p50_ms=float(np.median(period)) * MS,
        busy_ms=float(work.busy[chosen].sum()) / n * MS,
        gap_ms=float(gaps.mean()) * MS if len(gaps) else 0.0,
        kernels=count / n,
        kernel_us=float(work.alone[chosen].mean()) if count else 0.0,
        categories_ms={name: float(us) / n * MS for name, us in zip(CATEGORIES, by_category, strict=True)},
        batch=float(np.mean(batches)) if batches else None,
    )


def _components(timeline: Timeline) -> dict[Component, ComponentFigures]:
    parts: dict[Component, ComponentFigures] = {}
    of_name = [component(name) for name in timeline.names]
    for kind in get_args(Component):
        numbers = [number for number, name in enumerate(of_name) if name == kind]
        spans = timeline.ranges.take(np.isin(timeline.ranges.name, numbers))
        if len(spans):
            total = float((spans.end - spans.start).sum()) * MS
            parts[kind] = ComponentFigures(n=len(spans), mean_ms=total / len(spans), total_ms=total)
    return parts


def _kernels(timeline: Timeline, work: _Work) -> list[KernelFigures]:
    counts = np.bincount(work.spans.name, minlength=len(timeline.names))
    us = np.bincount(work.spans.name, work.alone, minlength=len(timeline.names))
    longest = [at for at in np.argsort(-us, kind="stable").tolist() if counts[at]][:SHOWN_KERNELS]
    names = timeline.names
    return [
        KernelFigures(
            name=names[at], category=categorize(names[at]), n=int(counts[at]), total_ms=float(us[at]) * MS
        )
        for at in longest
    ]


def _merge(*parts: Spans) -> Spans:
    joined = Spans(
        *(np.concatenate([getattr(spans, field) for spans in parts]) for field in Spans.__dataclass_fields__)
    )
    return joined.take(np.lexsort((-joined.end, joined.start)))


# --- Overlapping spans ----------------------------------------------------------------------------------


def self_times(spans: Spans) -> Floats:
    """(S,) µs of each span without the spans directly inside it on the same thread.

    Spans are sorted by start, the enclosing one first. This is torch's self CPU time when `spans` holds the
    operators, ranges and runtime calls together.
    """
    lengths = spans.end - spans.start
    result = lengths.copy()
    for thread in np.unique(spans.thread):
        where = np.flatnonzero(spans.thread == thread)
        open_spans: list[int] = []
        for position, start in zip(where.tolist(), spans.start[where].tolist(), strict=True):
            while open_spans and spans.end[open_spans[-1]] <= start:
                open_spans.pop()
            if open_spans:
                result[open_spans[-1]] -= lengths[position]
            open_spans.append(position)
    return result


def exclusive(spans: Spans) -> Floats:
    """(S,) µs that each span adds to the union of all, in order of start: what overlaps counts once."""
    if not len(spans):
        return np.zeros(0)
    before = np.concatenate([[spans.start[0]], np.maximum.accumulate(spans.end)[:-1]])
    added: Floats = np.maximum(0.0, spans.end - np.maximum(spans.start, before))
    return added


# --- Boundaries between the steps of an engine ----------------------------------------------------------

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
    """The steps of a profile; none if they cannot be distinguished.

    By the ranges around each forward where the engine marks them (rules.STEP_RANGES); else by its CUDA graph
    launches, of which each is a decode step and what is launched between two is of the first; else by the
    gaps of the device. A step reaches from its own start to the next one's, so that steps divide the time
    among them.
    """
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
