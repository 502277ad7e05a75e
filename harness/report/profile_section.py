"""The section of the report on a run's profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.profiling.artifacts import read_manifest, read_profiles
from harness.report.tables import profiles as profile_tables
from harness.report.tables.profiles import gap_table, gaps_table, unexplained


def profile_section(run: Path) -> dict[str, Any] | None:
    """Return the tables of the gaps and of the figures, and the files they come from; None where a run was
    not profiled.

    Raises:
        UsageError: what the profile stage wrote cannot be read.
    """
    profiles, manifest = read_profiles(run), read_manifest(run)
    if profiles is None or manifest is None:
        return None
    figures = [profile for profile in profiles.figures if profile.steps]
    shown = [profile_tables.steps(figures), profile_tables.categories(figures)] if figures else []
    if any(profile.ranks for profile in figures):
        shown.append(profile_tables.ranks(figures))
    if any(profile.components for profile in figures):
        shown.append(profile_tables.components(figures))
    if profiles.agreements:
        shown.append(profile_tables.agreements(profiles.agreements))
    remarks = {
        f"{profile.label}, {profile.tool}": remark
        for profile in profiles.figures
        for remark in profile.remarks
    }
    return {
        "profiled": profile_tables.profiled(
            [profile_run for profile_run in manifest.runs if profile_run.error is None]
        ),
        "all_gaps": gaps_table([gap for gap in profiles.gaps if gap.parts]),
        "gaps": [gap_table(gap) for gap in profiles.gaps if gap.parts],
        "unexplained": unexplained([gap for gap in profiles.gaps if not gap.parts]),
        "tables": shown,
        "kernels": [profile_tables.kernels(profile) for profile in profiles.figures],
        "rules": profile_tables.rules(),
        "unread": profiles.unread | remarks,
        "artifacts": [artifact for run in manifest.runs for artifact in run.artifacts],
    }
