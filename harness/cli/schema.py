"""`bench schema`: the JSON Schema of every file that others read or write."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pyarrow as pa
import typer
from pydantic import TypeAdapter

from harness.cli.terminal import echo
from harness.errors import UsageError
from harness.records.columns import SERVER
from harness.records.stored import STORED_CHUNKS, STORED_REQUESTS
from harness.runs.journal import JournalEntry
from harness.schema.cancel import CancelResults
from harness.schema.compare_results import CompareResults
from harness.schema.machines import Calibration, Prices
from harness.schema.online_settings import OnlineSettings
from harness.schema.profile import ProfileManifest, Profiles
from harness.schema.results import OnlineResults
from harness.schema.run_info import RunInfo
from harness.schema.settings import OfflineSettings
from harness.schema.tune import Space

SCHEMAS: dict[str, Any] = {
    "online-settings": OnlineSettings,
    "offline-settings": OfflineSettings,
    "run": RunInfo,
    "online-results": OnlineResults,
    "compare-results": CompareResults,
    "cancel-results": CancelResults,
    "journal-entry": JournalEntry,
    "calibration": Calibration,
    "profile-manifest": ProfileManifest,
    "profiles": Profiles,
    "prices": Prices,
    "space": Space,
}
#: Parquet files of a run; a row is shown as an object.
TABLES = {"requests-table": STORED_REQUESTS, "chunks-table": STORED_CHUNKS, "server-table": SERVER}


def schema(name: Annotated[str, typer.Argument(help=", ".join((*SCHEMAS, *TABLES)))]) -> None:
    """Print the JSON Schema of a settings or results file, or of a row of a table."""
    if name in TABLES:
        echo(json.dumps(_row(name, TABLES[name]), indent=2))
        return
    if name not in SCHEMAS:
        raise UsageError(f"there is no schema {name!r}", f"choose one of {', '.join((*SCHEMAS, *TABLES))}")
    echo(json.dumps(TypeAdapter(SCHEMAS[name]).json_schema(), indent=2))


def _row(title: str, columns: pa.Schema) -> dict[str, object]:
    """A row of a table: what its columns are called, and what they hold."""
    properties = {field.name: {"type": [_kind(field.type), "null"]} for field in columns}
    return {"title": title, "type": "object", "properties": properties, "additionalProperties": False}


def _kind(type: pa.DataType) -> str:
    if pa.types.is_floating(type):
        return "number"
    return "integer" if pa.types.is_integer(type) else "boolean" if pa.types.is_boolean(type) else "string"
