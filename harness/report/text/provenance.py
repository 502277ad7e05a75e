"""How a run was made, as tables: settings, what each engine was started with, versions, hardware."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.metrics.intervals import ASSUMED_SPREAD
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH
from harness.schema.calibration import Calibration
from harness.schema.fairness import AnswerCheck, AnswerChecks
from harness.schema.fairness import Ledger as FairLedger
from harness.schema.results import LaunchRecord, RunInfo
from harness.schema.stored import checked

#: How far repeats are taken to spread where there is one.
assumed = f"{100 * ASSUMED_SPREAD:.0f} %"


_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class Ledger:
    """One row a setting, one column an engine; `differs` where engines that tell it do not agree."""

    labels: list[str]
    rows: list[tuple[str, list[str], bool]]


def command(run: RunInfo) -> str:
    """The command that made the run, as a shell takes it."""
    return shlex.join(run.command)


def ledger(launches: list[LaunchRecord], told: FairLedger | None = None) -> Ledger:
    """The resolved settings of all engines side by side: as engines tell them, else as they were started."""
    if told is not None:
        rows = [
            (
                row.name,
                [
                    DASH if (fact := row.facts.get(label)) is None else say(fact.value)
                    for label in told.labels
                ],
                row.agreement == "differs",
            )
            for row in told.rows
        ]
        return Ledger(told.labels, rows)
    settings = dict.fromkeys(key for launch in launches for key in launch.settings)
    rows = []
    for key in settings:
        texts = [_started(launch, key) if key in launch.settings else DASH for launch in launches]
        known = [text for text in texts if text != DASH]
        rows.append((key, texts, len(set(known)) > 1))
    return Ledger([launch.label for launch in launches], rows)


def _started(launch: LaunchRecord, key: str) -> str:
    """A setting as it was given, types of numbers by one name."""
    text = say(launch.settings[key])
    return _DTYPES.get(text, text) if key == "dtype" else text


def hardware(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The machine; sizes in GiB. The client's own calibration is apart."""
    known = {name: value for name, value in environment.items() if name != "calibration"}
    for name in ("memory_total", "memory_available"):
        if isinstance(size := known.get(name), int):
            known[name] = f"{size / 2**30:.1f} GiB"
    return [(name.replace("_", " "), text) for name, text in flat(known)]


def client(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the client was measured to sustain, and how well it times."""
    found = environment.get("calibration")
    if not isinstance(found, dict):
        return [("calibration", say(found))] if found else []
    calibration = checked(found, Calibration, "the client's calibration in the run")
    rows = [("measured", calibration.created)]
    for one in calibration.ceilings:
        name = f"ceiling with {one.processes} client process{'' if one.processes == 1 else 'es'}"
        rows.append((name, f"{one.requests_per_s:,.0f} requests/s, {one.chunks_per_s:,.0f} chunks/s each"))
    for error in calibration.errors:
        ttft, itl = error.ttft_error_ms, error.itl_error_ms
        told = f"TTFT {ttft.p50:+.2f} / {ttft.p99:+.2f} ms, ITL {itl.p50:+.2f} / {itl.p99:+.2f} ms"
        rows.append((f"timing error p50 / p99, {error.concurrency} in flight", told))
    return rows


def answers(checks: AnswerChecks) -> Table:
    """Whether the engines answer the same prompts alike."""
    outcomes = ("same", "near tie", "different", "failed", "unknown")
    heads = ("engine", "verdict", *outcomes, "why")
    rows = [
        [
            Cell(check.label),
            Cell(check.verdict, invalid=check.verdict == "wrong"),
            *(Cell(str(count), count) for count in (_count(check, outcome) for outcome in outcomes)),
            Cell(check.reason or DASH),
        ]
        for check in checks.checks
    ]
    notes = [checks.rule, f"Reference: {checks.reference or 'none'}."]
    columns = [Column(head, numeric=head in outcomes) for head in heads]
    return Table("answers", "Same answers", columns, rows, notes)


def _count(check: AnswerCheck, outcome: str) -> int:
    return sum(answer.outcome == outcome for answer in check.answers)


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
        return ", ".join(say(item) for item in value) or "none"
    return value if isinstance(value, str) else json.dumps(value)
