"""The answer check as a table."""

from __future__ import annotations

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH
from harness.schema.fairness import AnswerCheck, AnswerChecks


def answers_table(checks: AnswerChecks) -> Table:
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
