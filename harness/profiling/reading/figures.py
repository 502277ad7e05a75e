"""Figures of a profile: what a step costs, and which part of it what takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import numpy as np
import numpy.typing as npt

from harness.profiling.reading.host import exclusive, self_times
from harness.profiling.reading.rules import categorize, component
from harness.profiling.reading.steps import Steps, find_steps
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
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True)
class _Work:
    """What the steps are made of: kernels and copies, or the operators of a CPU.

    Attributes:
        spans: (S,)
        at: (S,) µs at which the host began each: it decides to which step it belongs.
        busy: (S,) µs that each adds to the busy time.
        own: (S,) µs of each alone: kernel time, or self time of an operator.
    """

    spans: Spans
    at: Floats
    busy: Floats
    own: Floats


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
    found: dict[StepKind, StepFigures] = {}
    kinds = np.array(steps.kinds)
    for kind in get_args(StepKind):
        which = np.flatnonzero(kinds == kind)
        if len(which):
            chosen = inside & np.isin(step, which)
            found[kind] = _step_figures(timeline, work, chosen, period[which], gaps[which], steps, which)
    whole = float(period.sum())
    spans = [kind for kind in (timeline.ops, timeline.calls, timeline.ranges, timeline.device) if len(kind)]
    return ProfileFigures(
        tool=tool,
        label=label,
        device="cuda" if cuda else "cpu",
        steps_by=steps.by,
        steps=found,
        capture_ms=float(max(kind.end.max() for kind in spans) - min(kind.start.min() for kind in spans))
        * MS,
        busy_share=float(work.busy[inside].sum()) / whole if whole else 0.0,
        components=_components(timeline),
        kernels=_kernels(timeline, every),
        remarks=[]
        if found
        else ["no whole step was found: the capture is too short, or nothing marks steps"],
    )


@dataclass(frozen=True)
class StepWork:
    """What the GPU did in one step but for copies: the names of its kernels, and how long any of them ran."""

    names: list[str]
    busy_us: float


def step_works(timeline: Timeline) -> list[StepWork]:
    """Of every whole step that has any."""
    steps, work = find_steps(timeline), _device(timeline)
    step = _step_of(work, steps)
    copies = [n for n, name in enumerate(timeline.names) if categorize(name) == "memory copies"]
    step[np.isin(work.spans.name, copies)] = -1
    order = np.argsort(step, kind="stable")
    bounds = np.searchsorted(step[order], np.arange(len(steps) + 1))
    parts = (order[start:end] for start, end in pairwise(bounds.tolist()) if end > start)
    return [
        StepWork([timeline.names[name] for name in work.spans.name[part]], float(work.busy[part].sum()))
        for part in parts
    ]


def _step_of(work: _Work, steps: Steps) -> Ints:
    """(S,) the step of each span; −1 before the first, the number of steps after the last."""
    return np.searchsorted(steps.edges, work.at, side="right") - 1


def _device(timeline: Timeline) -> _Work:
    device = timeline.device
    own = device.end - device.start
    return _Work(device, _launched(timeline), exclusive(device), own)


def _launched(timeline: Timeline) -> Floats:
    """When the host launched each device span; if that is unknown, when it began."""
    calls, device = timeline.calls, timeline.device
    known = calls.take(calls.link >= 0)
    if not len(known):
        return device.start
    order = np.argsort(known.link, kind="stable")
    link, start = known.link[order], known.start[order]
    position = np.minimum(np.searchsorted(link, device.link), len(link) - 1)
    return np.where(link[position] == device.link, start[position], device.start)


def _host(timeline: Timeline, thread: int | None) -> _Work:
    """The operators of one thread, or of all, and the ranges that mark a kernel of a category."""
    kernels = [number for number, name in enumerate(timeline.names) if categorize(name) != "other"]
    spans = _merge(timeline.ops, timeline.ranges.take(np.isin(timeline.ranges.name, kernels)))
    if thread is not None:
        spans = spans.take(spans.thread == thread)
    own = self_times(spans)
    return _Work(spans, spans.start, own, own)


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
    known = gaps[np.isfinite(gaps)]
    return StepFigures(
        n=n,
        period_ms=float(period.mean()) * MS,
        period_p50_ms=float(np.median(period)) * MS,
        busy_ms=float(work.busy[chosen].sum()) / n * MS,
        gap_ms=float(known.mean()) * MS if len(known) else 0.0,
        kernels=count / n,
        kernel_us=float(work.own[chosen].mean()) if count else 0.0,
        categories_ms={name: float(us) / n * MS for name, us in zip(CATEGORIES, by_category, strict=True)},
        batch=float(np.mean(batches)) if batches else None,
    )


def _components(timeline: Timeline) -> dict[Component, ComponentFigures]:
    found: dict[Component, ComponentFigures] = {}
    of_name = [component(name) for name in timeline.names]
    for kind in get_args(Component):
        numbers = [number for number, name in enumerate(of_name) if name == kind]
        spans = timeline.ranges.take(np.isin(timeline.ranges.name, numbers))
        if len(spans):
            total = float((spans.end - spans.start).sum()) * MS
            found[kind] = ComponentFigures(n=len(spans), mean_ms=total / len(spans), total_ms=total)
    return found


def _kernels(timeline: Timeline, work: _Work) -> list[KernelFigures]:
    sums = _sum_by_name(timeline, work.spans, work.own)
    longest = sorted(sums.items(), key=lambda item: -item[1][1])[:SHOWN_KERNELS]
    return [
        KernelFigures(name=name, category=categorize(name), n=n, total_ms=us * MS)
        for name, (n, us) in longest
    ]


def _sum_by_name(timeline: Timeline, spans: Spans, us: Floats) -> dict[str, tuple[int, float]]:
    counts = np.bincount(spans.name, minlength=len(timeline.names))
    sums = np.bincount(spans.name, us, minlength=len(timeline.names))
    return {
        name: (int(n), float(total)) for name, n, total in zip(timeline.names, counts, sums, strict=True) if n
    }


def _merge(*parts: Spans) -> Spans:
    joined = Spans(
        *(np.concatenate([getattr(spans, field) for spans in parts]) for field in Spans.__dataclass_fields__)
    )
    return joined.take(np.lexsort((-joined.end, joined.start)))
