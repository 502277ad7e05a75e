"""`bench schema`: the JSON Schema of every file that others read or write."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from harness.cli.terminal import echo
from harness.errors import UsageError
from harness.runs.journal import JournalEntry
from harness.schema.calibration import Calibration
from harness.schema.compare_results import CompareResults
from harness.schema.offline_settings import OfflineSettings
from harness.schema.online_settings import OnlineSettings
from harness.schema.profile import ProfileManifest, Profiles
from harness.schema.results import OfflineResults, OnlineResults, RunInfo

SCHEMAS: dict[str, Any] = {
    "online-settings": OnlineSettings,
    "offline-settings": OfflineSettings,
    "run": RunInfo,
    "online-results": OnlineResults,
    "offline-results": OfflineResults,
    "compare-results": CompareResults,
    "journal-entry": JournalEntry,
    "calibration": Calibration,
    "profile-manifest": ProfileManifest,
    "profiles": Profiles,
}


def schema(name: Annotated[str, typer.Argument(help=", ".join(SCHEMAS))]) -> None:
    """Print the JSON Schema of a settings or results file."""
    if name not in SCHEMAS:
        raise UsageError(f"there is no schema {name!r}", f"choose one of {', '.join(SCHEMAS)}")
    echo(json.dumps(TypeAdapter(SCHEMAS[name]).json_schema(), indent=2))
