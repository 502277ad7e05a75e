"""Reads everything that a run's profile stage wrote, once, into `profiles/figures.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.files import write_json
from harness.profiling.agreement import Sorts, agreement, sorts
from harness.profiling.explain import explain
from harness.profiling.level import measure_levels
from harness.profiling.profile_files import read_manifest, read_profiles
from harness.profiling.reading.errors import TraceError
from harness.profiling.reading.figures import figures
from harness.profiling.reading.nsys_file import read_nsys
from harness.profiling.reading.timeline import Timeline
from harness.profiling.reading.torch_trace import read_torch_trace
from harness.runs.folder import FIGURES, MANIFEST, ONLINE_RESULTS
from harness.runs.reader import read_raw
from harness.schema.profile import Gap, ProfileFigures, ProfileManifest, ProfileRun, Profiles, Tool
from harness.schema.results import OnlineResults
from harness.schema.stored import read_of_run


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
    tools = Counter(one.label for one in manifest.runs if one.error is None)
    for one in manifest.runs:
        if one.error is not None:
            unread[one.output_dir] = one.error
            continue
        try:
            timeline = _read(run, one)
            found.append(figures(timeline, one.tool, one.label))
            if tools[one.label] > 1:
                steps.setdefault(one.label, {})[one.tool] = sorts(timeline)
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


def _read(run: Path, one: ProfileRun) -> Timeline:
    """Of one capture: the trace of the process that runs the model, or nsys's export."""
    folder = run / one.output_dir
    if one.tool == "nsys":
        return read_nsys(folder / "nsys.sqlite")
    packed = folder / "trace.json.gz"
    return read_torch_trace(packed if packed.exists() else folder / "trace.json")
