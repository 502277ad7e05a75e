"""Tables of what makes a comparison fair: settings side by side, the same answers, accuracy."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from harness.metrics.digits import per_cent
from harness.report.tables.table import Cell, Field, Table, build, count, field, number, text
from harness.report.text.numbers import DASH
from harness.report.text.provenance import fact_text, say
from harness.report.wording import reason_text
from harness.schema.fairness import AnswerCheck, AnswerChecks, Ledger, LedgerRow, TaskScore, TaskScores
from harness.schema.run_info import LaunchRecord

_AGREEMENTS = {"differs": "differs", "own": "own design", "equal": "", "unknown": ""}
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_OUTCOMES = ("same", "near tie", "different", "failed", "unknown")
_PERPLEXITY = (
    "Perplexity is of a fixed text, a token, by the server's own logprobs of its prompt; "
    f"{DASH}: the server gives none."
)


def ledger_table(ledger: Ledger) -> Table:
    """One row a setting, one column an engine; a setting that an engine does not report is unknown."""

    def cell(row: LedgerRow, label: str) -> Cell:
        fact = row.facts.get(label)
        return Cell(fact_text(fact.value), remark=fact.source) if fact else Cell("unknown")

    def engine(label: str) -> Field[LedgerRow]:
        return field(label, lambda row: cell(row, label), numeric=False)

    fields: list[Field[LedgerRow]] = [
        text("setting", lambda row: row.name),
        *map(engine, ledger.labels),
        text("", lambda row: _AGREEMENTS[row.agreement]),
    ]
    return build("ledger", "Settings side by side", fields, ledger.rows, sources(ledger))


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


@dataclass(frozen=True)
class SideBySide:
    """One row a setting, one column an engine; `differs` where engines that report it do not agree."""

    labels: list[str]
    rows: list[tuple[str, list[str], bool]]


def side_by_side(launches: list[LaunchRecord], ledger: Ledger | None = None) -> SideBySide:
    """The settings of all engines, a column each in the order of `launches`: as engines report them, else as
    they were started. An engine that was started and never measured is not in the ledger."""
    labels = [launch.label for launch in launches]
    rows = []
    if ledger is not None:
        for row in ledger.rows:
            facts = [row.facts.get(label) for label in labels]
            texts = [DASH if fact is None else fact_text(fact.value) for fact in facts]
            rows.append((row.name, texts, row.agreement == "differs"))
        return SideBySide(labels, rows)
    for key in dict.fromkeys(key for launch in launches for key in launch.settings):
        texts = [_started(launch, key) if key in launch.settings else DASH for launch in launches]
        rows.append((key, texts, len({value for value in texts if value != DASH}) > 1))
    return SideBySide(labels, rows)


def _started(launch: LaunchRecord, key: str) -> str:
    """A setting with which an engine was started, types of numbers by one name."""
    value = say(launch.settings[key])
    return _DTYPES.get(value, value) if key == "dtype" else value


def answers_table(checks: AnswerChecks) -> Table:
    """The answers of each engine to the same prompts, counted by how they compare with the reference."""

    def outcome_count(outcome: str) -> Field[AnswerCheck]:
        return count(outcome, lambda check: sum(answer.outcome == outcome for answer in check.answers))

    fields: list[Field[AnswerCheck]] = [
        text("engine", lambda check: check.label),
        field("verdict", lambda check: Cell(check.verdict, invalid=check.verdict == "wrong"), numeric=False),
        *map(outcome_count, _OUTCOMES),
        text("why", lambda check: DASH if check.reason is None else reason_text([check.reason])),
    ]
    notes = [checks.rule, f"Reference: {checks.reference or 'none'}."]
    return build("answers", "Same answers", fields, checks.checks, notes)


def accuracy_table(scores: TaskScores) -> Table:
    """Right answers of each engine with the interval of their share, right items of each kind, perplexity."""

    def of_family(family: str) -> Field[TaskScore]:
        return count(family, lambda score: score.by_family[family])

    fields: list[Field[TaskScore]] = [
        text("engine", lambda score: score.label),
        field("right", _right_cell),
        field("95 % interval", _interval_cell),
        *map(of_family, scores.scores[0].by_family),
        number("perplexity", lambda score: score.perplexity, 2),
        count("failed", lambda score: score.failed),
        text("", lambda score: "" if score.below is None else reason_text([score.below])),
    ]
    return build("accuracy", "Accuracy", fields, scores.scores, [scores.rule, _PERPLEXITY])


def _right_cell(score: TaskScore) -> Cell:
    return Cell(f"{score.right} of {score.items}", score.share, invalid=score.is_invalid)


def _interval_cell(score: TaskScore) -> Cell:
    low, high = score.ci
    return Cell(f"{per_cent(low, 1)} to {per_cent(high, 1)}", low)
