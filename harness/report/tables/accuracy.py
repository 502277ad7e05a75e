"""The accuracy task as a table."""

from __future__ import annotations

from harness.metrics.digits import per_cent
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH
from harness.schema.fairness import TaskScores


def accuracy_table(scores: TaskScores) -> Table:
    """One row an engine: its score with the interval, the items of each kind, the perplexity."""
    families = list(scores.scores[0].by_family)
    heads = ["right", "95 % interval", *families, "perplexity", "failed"]
    columns = [Column("engine", numeric=False), *map(Column, heads), Column("", numeric=False)]
    rows = [
        [
            Cell(score.label),
            Cell(f"{score.right} of {score.items}", score.share, invalid=bool(score.worse)),
            Cell(f"{per_cent(score.ci[0], 1)} to {per_cent(score.ci[1], 1)}", score.ci[0]),
            *(Cell(str(score.by_family[family]), score.by_family[family]) for family in families),
            Cell(DASH if score.perplexity is None else f"{score.perplexity:.2f}", score.perplexity),
            Cell(str(score.failed), score.failed),
            Cell(f"worse: {score.worse}" if score.worse else f"lower: {score.lower}" if score.lower else ""),
        ]
        for score in scores.scores
    ]
    notes = [
        scores.rule,
        "Perplexity is of a fixed text, a token, by the server's own logprobs of its prompt; "
        f"{DASH}: the server gives none.",
    ]
    return Table("accuracy", "Accuracy", columns, rows, notes)
