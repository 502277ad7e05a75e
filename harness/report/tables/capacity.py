"""The findings of a search as tables."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.tables.table import Cell, Column, Table
from harness.report.text.capacity import capacity_value, interval, load_value
from harness.report.text.limits import limit_words
from harness.report.text.numbers import DASH, plural
from harness.schema.search import CapacityRatio, SearchPlan, SearchResults


def capacity_tables(search: SearchResults) -> list[Table]:
    """The load that each engine carries and, of several engines, how much more than another."""
    guessed = {engine.label for engine in search.engines if engine.guessed}
    ratios = [ratio for ratio in search.ratios if not guessed & {ratio.a, ratio.b}]
    return [_loads(search), *([_ratios(ratios, search.plan)] if ratios else [])]


def _loads(search: SearchResults) -> Table:
    """One row an engine: the highest load within the limits, and what it cost to find."""
    engines, plan = search.engines, search.plan
    values = [Cell(DASH) if e.guessed else Cell(capacity_value(e), e.value) for e in engines]
    columns = [
        Column.text("engine", [engine.label for engine in engines]),
        Column(plan.unit, values),
        Column("95 % interval", [Cell(interval(engine), engine.low) for engine in engines]),
        Column.count("cells", [len(engine.trials) for engine in engines]),
        Column.count("invalid", [engine.invalid for engine in engines]),
        Column.count("starts", [engine.starts for engine in engines]),
        Column.text("why no more was measured", [engine.ended for engine in engines]),
    ]
    notes = [
        f"Limits: {limit_words(plan.limits)}. At the highest load, half of the cells meet all of them.",
        f"Searched from {load_value(plan.lowest)} to {load_value(plan.highest)} {plan.unit}, "
        f"at most {plural(plan.cells, 'cell')} an engine.",
    ]
    if any(trial.behind for engine in engines for trial in engine.trials):
        notes.append("A cell in which the engine falls behind misses the limits.")
    return Table("capacity", "Highest load within the limits", columns, notes)


def _ratios(ratios: Sequence[CapacityRatio], plan: SearchPlan) -> Table:
    """One row a pair of engines."""
    columns = [
        Column.text("engine", [ratio.a for ratio in ratios]),
        Column.text("against", [ratio.b for ratio in ratios]),
        Column.number("times as much", [ratio.value for ratio in ratios], 2),
        Column("95 % interval", [Cell(interval(ratio, 2), ratio.low) for ratio in ratios]),
        Column.text("", [ratio.verdict for ratio in ratios]),
    ]
    notes = ["Intervals and verdicts hold for all pairs of the search together."]
    if plan.by == "concurrency":
        notes.append("Of highest loads before they are rounded down to whole requests in flight.")
    return Table("capacity_ratios", "Highest loads against each other", columns, notes)
