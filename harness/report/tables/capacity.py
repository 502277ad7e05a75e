"""What a search found, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.capacity import capacity_value, interval, load_value
from harness.report.text.limits import limit_words
from harness.report.text.numbers import DASH, plural
from harness.schema.search import CapacityRatio, SearchPlan, SearchResults


def capacity_tables(search: SearchResults) -> list[Table]:
    """What each engine carries and, of several engines, how much more."""
    guessed = {found.label for found in search.engines if found.guessed}
    ratios = [ratio for ratio in search.ratios if not guessed & {ratio.a, ratio.b}]
    return [_found(search), *([_ratios(ratios, search.plan)] if ratios else [])]


def _found(search: SearchResults) -> Table:
    """One row an engine: the highest load within the limits, and what it cost to find."""
    columns = [
        Column("engine", numeric=False),
        *map(Column, (search.plan.unit, "95 % interval", "cells", "invalid", "starts")),
        Column("why no more was measured", numeric=False),
    ]
    rows = [
        [
            Cell(found.label),
            Cell(DASH if found.guessed else capacity_value(found), None if found.guessed else found.value),
            Cell(interval(found), found.low),
            Cell(str(len(found.trials)), len(found.trials)),
            Cell(str(found.invalid), found.invalid),
            Cell(str(found.starts), found.starts),
            Cell(found.ended),
        ]
        for found in search.engines
    ]
    plan = search.plan
    notes = [
        f"Limits: {limit_words(plan.limits)}. At the highest load, half of the cells meet all of them.",
        f"Searched from {load_value(plan.lowest)} to {load_value(plan.highest)} {plan.unit}, "
        f"at most {plural(plan.cells, 'cell')} an engine.",
    ]
    if any(trial.behind for found in search.engines for trial in found.trials):
        notes.append("A cell in which the engine falls behind misses the limits.")
    return Table("capacity", "Highest load within the limits", columns, rows, notes)


def _ratios(ratios: Sequence[CapacityRatio], plan: SearchPlan) -> Table:
    """One row a pair of engines."""
    columns = [Column("engine", numeric=False), Column("against", numeric=False)]
    columns += [Column("times as much"), Column("95 % interval"), Column("", numeric=False)]
    rows = [
        [
            Cell(ratio.a),
            Cell(ratio.b),
            Cell(f"{ratio.value:.2f}", ratio.value),
            Cell(interval(ratio, 2), ratio.low),
            Cell(ratio.verdict),
        ]
        for ratio in ratios
    ]
    notes = ["Intervals and verdicts hold for all pairs of the search together."]
    if plan.by == "concurrency":
        notes.append("Of highest loads before they are rounded down to whole requests in flight.")
    return Table("capacity_ratios", "Highest loads against each other", columns, rows, notes)
