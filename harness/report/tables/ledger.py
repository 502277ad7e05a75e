"""The settings ledger as a table, with where each value comes from."""

from __future__ import annotations

from collections import defaultdict

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.provenance import say
from harness.schema.fairness import Ledger

_WORDS = {"differs": "differs", "own": "own design", "equal": "", "unknown": ""}


def ledger_table(ledger: Ledger) -> Table:
    """One row a setting, one column an engine; what an engine does not tell is unknown."""
    columns = [Column("setting", numeric=False), *(Column(label, numeric=False) for label in ledger.labels)]
    rows = []
    for row in ledger.rows:
        told = [row.facts.get(label) for label in ledger.labels]
        cells = [Cell(say(one.value), remark=one.source) if one else Cell("unknown") for one in told]
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
        told = "; ".join(f"{source} for {', '.join(keys)}" for source, keys in names.items())
        lines.append(f"{label}: {told or 'it tells nothing'}.")
    return lines
