"""Reads everything that a run's profile stage wrote, once, into `profiles/figures.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.files import write_json
from harness.profiling.agreement import Sorts, agreement, sorts
from harness.profiling.artifacts import torch_traces, trace_name
from harness.profiling.explain import explain
from harness.profiling.level import measure_levels
from harness.profiling.profile_files import read_manifest, read_profiles
from harness.profiling.reading.errors import TraceError
from harness.profiling.reading.figures import figures
from harness.profiling.reading.nsys_file import count_devices, read_nsys
from harness.profiling.reading.timeline import Timeline
from harness.profiling.reading.torch_trace import read_torch_trace
from harness.runs.folder import FIGURES, MANIFEST, ONLINE_RESULTS
from harness.runs.reader import read_raw
from harness.schema.files import read_of_run
from harness.schema.profile import (
    Gap,
    ProfileFigures,
    ProfileManifest,
    ProfileRun,
    Profiles,
    RankFigures,
    Tool,
)
from harness.schema.results import OnlineResults


def analyse(run: Path) -> Profiles:
    """Figures of every profile of a run and the gaps they explain, written into the run's folder.

    A file that cannot be read is in `unread`; the rest is whole.

    Raises:
        UsageError: the run was not profiled, or its manifest or results cannot be read.
    """
    manifest = read_manifest(run)
    if manifest is None:
        raise UsageError(f"{run} holds no {MANIFEST}", f"profile it with bench profile {run}")
    found: list[ProfileFigures] = []
    unread: dict[str, str] = {}
    steps: dict[str, dict[Tool, Sorts]] = {}  # of each label, by the tools that captured it
    tools = Counter(profile_run.label for profile_run in manifest.runs if profile_run.error is None)
    for profile_run in manifest.runs:
        if profile_run.error is not None:
            unread[profile_run.output_dir] = profile_run.error
            continue
        try:
            timeline, *others = _read(run, profile_run)
            own = figures(timeline, profile_run.tool, profile_run.label)
            found.append(own.model_copy(update={"ranks": _ranks(own, others)}))
            if tools[profile_run.label] > 1:
                steps.setdefault(profile_run.label, {})[profile_run.tool] = sorts(timeline)
        except TraceError as error:
            unread[error.path.relative_to(run).as_posix()] = error.reason
    gaps = find_gaps(run, manifest, found)
    compared = [agreement(label, of["torch"], of["nsys"]) for label, of in steps.items() if len(of) > 1]
    agreements = [each for each in compared if each is not None]
    profiles = Profiles(figures=found, gaps=gaps, agreements=agreements, unread=unread)
    write_json(run / FIGURES, profiles)
    return profiles


def renew_gaps(run: Path) -> None:
    """Find the gaps of a profiled run again by its figures, where it has the raw tables for that.

    Raises:
        UsageError: the manifest, the figures or the results cannot be read.
    """
    manifest, profiles = read_manifest(run), read_profiles(run)
    if manifest is None or profiles is None or not (run / "requests.parquet").is_file():
        return
    gaps = find_gaps(run, manifest, profiles.figures)
    write_json(run / FIGURES, profiles.model_copy(update={"gaps": gaps}))


def find_gaps(run: Path, manifest: ProfileManifest, figures: Sequence[ProfileFigures]) -> list[Gap]:
    """The differences that the run's results found, taken apart; none of a run that was not measured.

    Raises:
        UsageError: its results or raw tables cannot be read.
    """
    if not (run / ONLINE_RESULTS).is_file():
        return []
    results = read_of_run(run, ONLINE_RESULTS, OnlineResults)
    records = read_raw(run).records
    return explain(results, manifest.runs, figures, measure_levels(records.requests, records.chunks))


def _read(run: Path, profile_run: ProfileRun) -> list[Timeline]:
    """Of one capture, rank by rank: the traces of the processes that run the model, or nsys's export."""
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
