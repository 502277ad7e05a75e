"""What the report shows of a run's profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.profiling.profile_files import read_manifest, read_profiles
from harness.report.tables import profiles as profile_tables
from harness.report.tables.gaps import gap_table, unexplained
from harness.report.tables.table import Table
from harness.schema.profile import Artifact


@dataclass(frozen=True)
class ProfileSection:
    """Tables of the gaps and of the figures, and the files they come from (paths relative to the run)."""

    profiled: str
    gaps: Sequence[Table]
    unexplained: Sequence[str]
    tables: Sequence[Table]
    kernels: Sequence[Table]
    rules: Table
    unread: dict[str, str]
    artifacts: Sequence[Artifact]


def profile_section(run: Path) -> ProfileSection | None:
    """The section of a run; None where it was not profiled.

    Raises:
        UsageError: what the profile stage wrote cannot be read.
    """
    profiles, manifest = read_profiles(run), read_manifest(run)
    if profiles is None or manifest is None:
        return None
    figures = [one for one in profiles.figures if one.steps]
    shown = [profile_tables.steps(figures), profile_tables.categories(figures)] if figures else []
    if any(one.components for one in figures):
        shown.append(profile_tables.components(figures))
    if profiles.agreements:
        shown.append(profile_tables.agreements(profiles.agreements))
    remarks = {f"{one.label}, {one.tool}": remark for one in profiles.figures for remark in one.remarks}
    return ProfileSection(
        profiled=profile_tables.profiled([one for one in manifest.runs if one.error is None]),
        gaps=[gap_table(one) for one in profiles.gaps if one.parts],
        unexplained=unexplained([one for one in profiles.gaps if not one.parts]),
        tables=shown,
        kernels=[profile_tables.kernels(one) for one in profiles.figures],
        rules=profile_tables.rules(),
        unread=profiles.unread | remarks,
        artifacts=[one for run in manifest.runs for one in run.artifacts],
    )
