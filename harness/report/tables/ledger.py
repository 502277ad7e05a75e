"""The engines' settings side by side, with where each value comes from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH
from harness.report.text.provenance import fact_text, say
from harness.schema.fairness import Ledger
from harness.schema.run_info import LaunchRecord

_WORDS = {"differs": "differs", "own": "own design", "equal": "", "unknown": ""}
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def ledger_table(ledger: Ledger) -> Table:
    """One row a setting, one column an engine; what an engine does not report is unknown."""
    columns = [Column("setting", numeric=False), *(Column(label, numeric=False) for label in ledger.labels)]
    rows = []
    for row in ledger.rows:
        facts = [row.facts.get(label) for label in ledger.labels]
        cells = [
            Cell(fact_text(fact.value), remark=fact.source) if fact else Cell("unknown") for fact in facts
        ]
        rows.append([Cell(row.name), *cells, Cell(_WORDS[row.agreement])])
    return Table(
        "ledger", "Settings side by side", [*columns, Column("", numeric=False)], rows, sources(ledger)
    )


def sources(ledger: Ledger) -> list[str]:
    """For each engine, who says what."""
    lines = []
    for label in ledger.labels:
        names = defaultdict(list)
        for row in ledger.rows:
            if (fact := row.facts.get(label)) is not None:
                names[fact.source].append(row.name)
        sources = "; ".join(f"{source} for {', '.join(keys)}" for source, keys in names.items())
        lines.append(f"{label}: {sources or 'it reports nothing'}.")
    return lines


@dataclass(frozen=True)
class SideBySide:
    """One row a setting, one column an engine; `differs` where engines that report it do not agree."""

    labels: list[str]
    rows: list[tuple[str, list[str], bool]]


def side_by_side(launches: list[LaunchRecord], ledger: Ledger | None = None) -> SideBySide:
    """The settings of all engines, a column each in the order of `launches`: as engines report them, else as
    they were started. An engine that was started and never measured is not in the ledger."""
    labels = [launch.label for launch in launches]
    if ledger is not None:
        rows = [
            (
                row.name,
                [
                    DASH if (fact := row.facts.get(label)) is None else fact_text(fact.value)
                    for label in labels
                ],
                row.agreement == "differs",
            )
            for row in ledger.rows
        ]
        return SideBySide(labels, rows)
    settings = dict.fromkeys(key for launch in launches for key in launch.settings)
    rows = []
    for key in settings:
        texts = [_started(launch, key) if key in launch.settings else DASH for launch in launches]
        known = [text for text in texts if text != DASH]
        rows.append((key, texts, len(set(known)) > 1))
    return SideBySide(labels, rows)


def _started(launch: LaunchRecord, key: str) -> str:
    """A setting as it was given, types of numbers by one name."""
    text = say(launch.settings[key])
    return _DTYPES.get(text, text) if key == "dtype" else text
