"""Reads everything that a run's profile stage wrote, once, into `profiles/figures.json`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from harness.errors import UsageError
from harness.files import write_json
from harness.profiling.artifacts import read_manifest, torch_traces, trace_name
from harness.profiling.explain import explain
from harness.profiling.level import measure_levels
from harness.profiling.py_spy import read_stacks
from harness.profiling.reading.figures import figures, step_works
from harness.profiling.reading.nsys_file import count_devices, read_nsys
from harness.profiling.reading.timeline import Timeline, TraceError
from harness.profiling.reading.torch_trace import read_torch_trace
from harness.runs.folder import FIGURES, MANIFEST, ONLINE_RESULTS
from harness.runs.reader import read_raw
from harness.schema.files import read_stored
from harness.schema.profile import (
    Agreement,
    Gap,
    GapSummary,
    ProfileFigures,
    ProfileManifest,
    ProfileRun,
    Profiles,
    ProfileSummary,
    RankFigures,
    Spent,
    Tool,
)
from harness.schema.results import OnlineResults

#: Where a kernel's name continues with what the two tools write in different ways.
_ENDS = "<("
_UNNAMED = ("(anonymous namespace)::", "<unnamed>::", "void ")
#: Busy µs of steps by sort: those of the same kernels, whatever their order.
Sorts = dict[tuple[str, ...], list[float]]


def analyse(run: Path) -> Profiles:
    """ProfileFigures of every profile of a run and the gaps they explain, written into the run's folder.

    A file that cannot be read is in `unread`; the rest is whole.

    Raises:
        UsageError: the run was not profiled, or its manifest or results cannot be read.
    """
    manifest = read_manifest(run)
    if manifest is None:
        raise UsageError(f"{run} holds no {MANIFEST}", f"profile it with bench profile {run}")
    every: list[ProfileFigures] = []
    sampled: list[Spent] = []
    unread: dict[str, str] = {}
    steps: dict[str, dict[Tool, Sorts]] = {}  # of each label, by the tools that captured it
    tools = Counter(profile_run.label for profile_run in manifest.runs if profile_run.error is None)
    for profile_run in manifest.runs:
        if profile_run.error is not None:
            unread[profile_run.output_dir] = profile_run.error
            continue
        if profile_run.tool == "py-spy":
            sampled.append(read_stacks(run / profile_run.output_dir, profile_run.label))
            continue
        try:
            timeline, *others = _read(run, profile_run)
            first = figures(timeline, profile_run.tool, profile_run.label)
            every.append(first.model_copy(update={"ranks": _ranks(first, others)}))
            if tools[profile_run.label] > 1:
                steps.setdefault(profile_run.label, {})[profile_run.tool] = sorts(timeline)
        except TraceError as error:
            unread[error.path.relative_to(run).as_posix()] = error.reason
    gaps = find_gaps(run, manifest, every)
    compared = [agreement(label, of["torch"], of["nsys"]) for label, of in steps.items() if len(of) > 1]
    agreements = [each for each in compared if each is not None]
    profiles = Profiles(figures=every, gaps=gaps, agreements=agreements, sampled=sampled, unread=unread)
    write_json(run / FIGURES, profiles)
    write_json(run / MANIFEST, manifest.model_copy(update={"summary": summarize_profiles(profiles)}))
    return profiles


def summarize_profiles(profiles: Profiles) -> ProfileSummary:
    """Return what took the time of each engine, by parts of its mean step, and parts of differences."""
    spent = list(profiles.sampled)
    for figure in profiles.figures:
        steps = list(figure.steps.values())
        if not steps:
            continue
        weights = [step.n for step in steps]
        means = {"idle": figure.step_ms - figure.busy_ms}
        for name in dict.fromkeys(name for step in steps for name in step.categories_ms):
            means[name] = fmean([step.categories_ms.get(name, 0.0) for step in steps], weights)
        parts = {name: mean for name, mean in sorted(means.items(), key=lambda part: -part[1]) if mean}
        spent.append(Spent(label=figure.label, tool=figure.tool, step_ms=figure.step_ms, parts=parts))
    gaps = [
        GapSummary(
            **{name: getattr(gap, name) for name in ("a", "b", "metric", "delta", "unexplained")},
            parts={part.name: part.delta for part in gap.parts},
        )
        for gap in profiles.gaps
    ]
    return ProfileSummary(spent=spent, gaps=gaps, figures=FIGURES)


def find_gaps(run: Path, manifest: ProfileManifest, figures: Sequence[ProfileFigures]) -> list[Gap]:
    """Take apart the differences that the run's results show; there are none of a run that was not measured.

    Raises:
        UsageError: its results or raw tables cannot be read.
    """
    if not (run / ONLINE_RESULTS).is_file():
        return []
    results = read_stored(run / ONLINE_RESULTS, OnlineResults)
    records = read_raw(run).records
    return explain(results, manifest.runs, figures, measure_levels(records.requests, records.chunks))


def _read(run: Path, profile_run: ProfileRun) -> list[Timeline]:
    """Return the timelines of one capture by rank: traces of processes that run the model, or an export."""
    folder = run / profile_run.output_dir
    if profile_run.tool == "nsys":
        export = folder / "nsys.sqlite"
        return [read_nsys(export, rank) for rank in range(count_devices(export))]
    traces = torch_traces(folder)
    return [read_torch_trace(traces.get(rank, folder / trace_name(rank))) for rank in range(len(traces) or 1)]


def _ranks(own: ProfileFigures, others: Sequence[Timeline]) -> list[RankFigures]:
    """All ranks beside each other; none where there is one, or where one has no whole step."""
    every = [own, *(figures(timeline, own.tool, own.label) for timeline in others)]
    if not others or not all(each.steps for each in every):
        return []
    return [
        RankFigures(
            rank=rank, step_ms=each.step_ms, busy_ms=each.busy_ms, communication_ms=each.communication_ms
        )
        for rank, each in enumerate(every)
    ]


# --- Agreement of two profilers -------------------------------------------------------------------------


def agreement(label: str, torch: Sorts, nsys: Sorts) -> Agreement | None:
    """Compare steps of the same kernels, as many of each sort as both have; None where there are none."""
    counts = {names: min(len(torch[names]), len(nsys[names])) for names in torch if names in nsys}
    if not counts:
        return None
    torch_us, nsys_us = (
        math.fsum(count * fmean(times[names]) for names, count in counts.items()) for times in (torch, nsys)
    )
    return Agreement(
        label=label,
        steps=sum(counts.values()),
        kernels=sum(count * len(names) for names, count in counts.items()),
        torch_ms=torch_us * 1e-3,
        nsys_ms=nsys_us * 1e-3,
    )


def sorts(timeline: Timeline) -> Sorts:
    """Return the whole steps of a profile by sort."""
    by_sort: Sorts = {}
    for names, busy_us in step_works(timeline):
        by_sort.setdefault(tuple(sorted(map(_plain, names))), []).append(busy_us)
    return by_sort


def _plain(name: str) -> str:
    """A kernel's name without its template arguments and parameters."""
    for part in _UNNAMED:
        name = name.replace(part, "")
    return name[: min((at for end in _ENDS if (at := name.find(end)) >= 0), default=len(name))]
