"""The findings of a search: its values as text, its tables, its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.engines.registry import in_order
from harness.metrics.rankings import capacity_ranking
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH, decimals, number, plural
from harness.report.wording import Sentence, limit_words, sentence
from harness.schema.machines import Hourly
from harness.schema.search import CapacityFound, CapacityRatio, SearchPlan, SearchResults


def capacity_tables(search: SearchResults) -> list[Table]:
    """The load that each engine carries and, of several engines, how much more than another."""
    guessed = {engine.label for engine in search.engines if engine.guessed}
    ratios = [ratio for ratio in search.ratios if not guessed & {ratio.a, ratio.b}]
    return [_loads(search), *([_ratios(ratios, search.plan)] if ratios else [])]


def _loads(search: SearchResults) -> Table:
    """One row an engine: the highest load within the limits, and what it cost to find."""
    engines, plan = in_order(search.engines), search.plan
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
    if plan.closed:
        notes.append(f"Of highest loads before they are rounded down to whole {plan.unit}.")
    return Table("capacity_ratios", "Highest loads against each other", columns, notes)


def agents_table(
    search: SearchResults, gpus: Mapping[str, int], hourly: Hourly | None, of: int
) -> Table | None:
    """Agents for each unit of what they cost; None of another search, and where nothing is known of that.

    Args:
        gpus: That each engine computes on, by label.
        hourly: Price of an hour of the machine; None: not known.
        of: Its GPUs.
    """
    engines = [it for it in in_order(search.engines) if it.value is not None and not it.guessed]
    if search.plan.by != "agents" or not engines:
        return None

    def per(name: str, amounts: Sequence[float | None]) -> Column | None:
        cells = []
        for engine, amount in zip(engines, amounts, strict=True):
            ends = [end / amount for end in (engine.low, engine.high) if end and amount]
            value = engine.value / amount if engine.value and amount else None
            cells.append(Cell.number(value, ends=(ends[0], ends[1]) if len(ends) == 2 else None))
        return Column(f"agents per {name}", cells) if any(amounts) else None

    counts = [gpus.get(engine.label) for engine in engines]
    watts = [engine.watts for engine in engines]
    columns = [per("GPU", counts), per("kW", [each and each / 1e3 for each in watts])]
    if hourly is not None:
        prices = [hourly.amount * (count or of) / of if of else hourly.amount for count in counts]
        columns.append(per(f"{hourly.currency} an hour", prices))
    if not any(columns):
        return None
    labels = Column.text("engine", [engine.label for engine in engines])
    notes = ["Power: of the heaviest cell within the limits, by energy counters of GPUs or processors."]
    return Table("agents", "Agents for what they cost", [labels, *filter(None, columns)], notes)


# --- The answer ------------------------------------------------------------------------------------------


def load_value(value: float | None) -> str:
    """A load with three digits, a whole number as one; a dash where it is not known."""
    if value is None:
        return DASH
    return number(value, 0 if value == round(value) else decimals([value]))


def interval(found: CapacityFound | CapacityRatio, places: int | None = None) -> str:
    """`3.1 to 4.2`; an end outside the loads that were allowed is left open."""
    low, high = (
        None if end is None else load_value(end) if places is None else f"{end:.{places}f}"
        for end in (found.low, found.high)
    )
    if low is None and high is None:
        return "not known"
    if low is None or high is None:
        return f"at most {high}" if low is None else f"at least {low}"
    return f"{low} to {high}"


def capacity_value(found: CapacityFound) -> str:
    """The highest load, also where it is beyond the loads that were allowed: `under 1`, `64 or more`. Its
    interval where every cell said the same."""
    if found.guessed:
        return interval(found)
    value = load_value(found.value)
    return {None: value, "lightest": f"under {value}", "heaviest": f"{value} or more"}[found.bound]


def capacity_answer(search: SearchResults) -> list[Sentence]:
    """Say how much the engine carries that carries most; the table has the others."""
    counted = [engine for engine in search.engines if engine.guessed or engine.value is not None]
    plan, limits = search.plan, limit_words(search.plan.limits)
    bounds = {engine.bound for engine in counted}
    if not counted:
        return [sentence("no_cell_counts")]
    if bounds == {"lightest"}:
        return [sentence("none_meets", limits=limits, amount=plan.amount(plan.lowest))]
    if bounds == {"heaviest"}:
        return [sentence("all_meet", limits=limits, amount=plan.amount(plan.highest))]
    best = max(counted, key=lambda found: (found.shown, found.bound != "lightest"))
    values = {"limits": limits, "label": best.label}
    amount = f"{capacity_value(best)} {plan.unit_of(best.shown)}"
    if best.guessed:
        has_end = best.low is not None or best.high is not None
        amount = amount if has_end else "a load that is not known"
        return [sentence("carries_unknown", **values, amount=amount, why=best.ended)]
    kind = "carries_most" if capacity_ranking(search).winner is not None else "carries"
    return [sentence(kind, **values, amount=amount, interval=interval(best))]
