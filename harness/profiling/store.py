"""The files of the profile stage in a run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from harness.errors import UsageError
from harness.spec.profile import ProfileManifest, Profiles

MANIFEST = "profile_manifest.json"
FIGURES = "profiles/figures.json"

Model = TypeVar("Model", bound=BaseModel)


def read_manifest(run: Path) -> ProfileManifest | None:
    """What was captured; None where the run was not profiled. Raises UsageError when it cannot be read."""
    return _read(run / MANIFEST, ProfileManifest)


def read_profiles(run: Path) -> Profiles | None:
    """What was read from it; None where nothing was. Raises UsageError when it cannot be read."""
    return _read(run / FIGURES, Profiles)


def _read(path: Path, model: type[Model]) -> Model | None:
    if not path.exists():
        return None
    try:
        return model.model_validate_json(path.read_bytes())
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(f"{path} is not of this version: {reason}", "profile the run again") from None
