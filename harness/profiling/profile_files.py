"""The files of the profile stage in a run's folder."""

from __future__ import annotations

from pathlib import Path

from harness.runs.folder import FIGURES, MANIFEST
from harness.schema.files import Model, read_of_run
from harness.schema.profile import ProfileManifest, Profiles


def read_manifest(run: Path) -> ProfileManifest | None:
    """What was captured; None where the run was not profiled. Raises UsageError when it cannot be read."""
    return _read(run, MANIFEST, ProfileManifest)


def read_profiles(run: Path) -> Profiles | None:
    """What was read from it; None where nothing was. Raises UsageError when it cannot be read."""
    return _read(run, FIGURES, Profiles)


def _read(run: Path, name: str, model: type[Model]) -> Model | None:
    return read_of_run(run, name, model, "profile the run again") if (run / name).exists() else None
