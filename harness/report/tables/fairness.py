"""Tables of what makes a comparison fair: settings side by side, the same answers, accuracy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from harness.metrics.digits import per_cent
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH
from harness.report.text.provenance import fact_text
from harness.report.wording import reason_text
from harness.schema.fairness import AnswerChecks, Ledger, LedgerRow, TaskScores
from harness.schema.run_info import LaunchRecord

_AGREEMENTS = {"differs": "differs", "own": "own design", "equal": "", "unknown": ""}
_OUTCOMES = ("same", "near tie", "different", "failed", "unknown")
_PERPLEXITY = (
    "Perplexity is of a fixed text, a token, by the server's own logprobs of its prompt; "
    f"{DASH}: the server gives none."
)


def ledger_table(ledger: Ledger) -> Table:
    """One row a setting, one column an engine; a setting that an engine does not report is unknown."""
    rows = ledger.rows
    columns = [
        Column.text("setting", [row.name for row in rows]),
        *(Column(label, [_fact(row, label) for row in rows], numeric=False) for label in ledger.labels),
        Column.text("", [_AGREEMENTS[row.agreement] for row in rows]),
    ]
    return Table("ledger", "Settings side by side", columns, sources(ledger))


def _fact(row: LedgerRow, label: str) -> Cell:
    fact = row.facts.get(label)
    return Cell(fact_text(fact.value), remark=fact.source) if fact else Cell("unknown")


def sources(ledger: Ledger) -> list[str]:
    """A line for each engine: the source of each of its settings."""
    lines = []
    for label in ledger.labels:
        names = defaultdict(list)
        for row in ledger.rows:
            if (fact := row.facts.get(label)) is not None:
                names[fact.source].append(row.name)
        by_source = "; ".join(f"{source} for {', '.join(keys)}" for source, keys in names.items())
        lines.append(f"{label}: {by_source or 'it reports nothing'}.")
    return lines


def side_by_side(launches: Sequence[LaunchRecord], ledger: Ledger) -> list[tuple[str, list[str], bool]]:
    """Every setting with its value in each engine, in the order of `launches`, and whether engines differ. An
    engine that was started and never measured is not in the ledger."""
    rows = [(row, [row.facts.get(launch.label) for launch in launches]) for row in ledger.rows]
    return [
        (row.name, [fact_text(fact.value) if fact else DASH for fact in facts], row.agreement == "differs")
        for row, facts in rows
    ]


def answers_table(checks: AnswerChecks) -> Table:
    """The answers of each engine to the same prompts, counted by how they compare with the reference."""
    engines = checks.checks
    outcomes = [Counter[str](answer.outcome for answer in engine.answers) for engine in engines]
    verdicts = [engine.verdict for engine in engines]
    reasons = [DASH if engine.reason is None else reason_text([engine.reason]) for engine in engines]
    columns = [
        Column.text("engine", [engine.label for engine in engines]),
        Column.text("verdict", verdicts).marked("invalid", (v == "wrong" for v in verdicts)),
        *(Column.count(outcome, [counts[outcome] for counts in outcomes]) for outcome in _OUTCOMES),
        Column.text("why", reasons),
    ]
    notes = [checks.rule, f"Reference: {checks.reference or 'none'}."]
    return Table("answers", "Same answers", columns, notes)


def accuracy_table(results: TaskScores) -> Table:
    """Right answers of each engine with the interval of their share, right items of each kind, perplexity."""
    scores = results.scores
    right = [Cell(f"{s.right} of {s.items}", s.share, invalid=s.is_invalid) for s in scores]
    ends = [(" to ".join(per_cent(end, 1) for end in score.ci), score.ci[0]) for score in scores]
    families = scores[0].by_family
    columns = [
        Column.text("engine", [score.label for score in scores]),
        Column("right", right),
        Column("95 % interval", [Cell(*end) for end in ends]),
        *(Column.count(family, [score.by_family[family] for score in scores]) for family in families),
        Column.number("perplexity", [score.perplexity for score in scores], 2),
        Column.count("failed", [score.failed for score in scores]),
        Column.text("", ["" if s.below is None else reason_text([s.below]) for s in scores]),
    ]
    return Table("accuracy", "Accuracy", columns, [results.rule, _PERPLEXITY])
