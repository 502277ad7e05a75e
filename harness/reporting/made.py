"""How a run was made, as tables: settings, what each engine was started with, versions, hardware."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.reporting.numbers import DASH
from harness.spec.results import LaunchRecord, RunInfo


@dataclass(frozen=True)
class Ledger:
    """One row a setting, one column an engine; `differs` where engines that tell it do not agree."""

    labels: list[str]
    rows: list[tuple[str, list[str], bool]]


def command(run: RunInfo) -> str:
    """The command that made the run, as a shell takes it."""
    return shlex.join(run.command)


def ledger(launches: list[LaunchRecord]) -> Ledger:
    """The resolved settings of all engines side by side."""
    keys = dict.fromkeys(key for launch in launches for key in launch.settings)
    rows = []
    for key in keys:
        told = [say(launch.settings[key]) for launch in launches if key in launch.settings]
        texts = [say(launch.settings[key]) if key in launch.settings else DASH for launch in launches]
        rows.append((key, texts, len(set(told)) > 1))
    return Ledger([launch.label for launch in launches], rows)


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as `a.b.0.c` and their text; empty ones are left out."""
    found = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            found += flat(value, f"{name}.")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            found += flat({str(position): item for position, item in enumerate(value)}, f"{name}.")
        elif value not in (None, [], ""):
            found.append((name, say(value)))
    return found


def say(value: Any) -> str:
    """A JSON value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(say(item) for item in value)
    return value if isinstance(value, str) else json.dumps(value)
