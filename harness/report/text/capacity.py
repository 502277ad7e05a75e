"""Values of a search as text, and its answer."""

from __future__ import annotations

from harness.metrics.rankings import capacity_ranking
from harness.report.text.limits import limit_words
from harness.report.text.numbers import DASH, decimals, number
from harness.report.wording import Sentence, sentence
from harness.schema.search import CapacityFound, CapacityRatio, SearchResults


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
