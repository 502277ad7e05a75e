"""What a search found, in words."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report.text.limits import limit_words
from harness.report.text.numbers import DASH, decimals, number
from harness.schema.search import CapacityFound, CapacityRatio, SearchResults, Verdict

_OPPOSITE: dict[Verdict, Verdict] = {
    "more": "less",
    "less": "more",
    "no difference shown": "no difference shown",
}


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


def capacity_verdict(search: SearchResults) -> list[str]:
    """How much the best engine carries, and how much more than each of the others."""
    known = [found for found in search.engines if found.guessed or found.value is not None]
    if not known:
        return ["No engine has a cell that counts.", "The table says why."]
    plan, bounds = search.plan, {found.bound for found in known}
    if bounds == {"lightest"}:
        lightest = plan.amount(plan.lowest)
        return [
            f"No engine meets {limit_words(plan.limits)} at the lightest load, {lightest}.",
            "Loosen the limits.",
        ]
    if bounds == {"heaviest"}:
        heaviest = plan.amount(plan.highest)
        return [
            f"Every engine meets {limit_words(plan.limits)} at the heaviest load, {heaviest}.",
            "Raise --highest.",
        ]
    best, *others = sorted(known, key=lambda found: (-found.shown, found.bound == "lightest"))
    if best.guessed and not any(trial.met for trial in best.trials):
        lightest = plan.amount(min(trial.value for trial in best.trials if trial.met is not None))
        return [
            f"No cell of {best.label} meets {limit_words(plan.limits)}; the lightest load that was measured "
            f"is {lightest}.",
            "Allow more cells (--cells) or lighter loads (--lowest), or loosen the limits.",
        ]
    carries = (
        f"{best.label} carries {capacity_value(best)} {plan.unit_of(best.shown)} "
        f"(95 % interval {interval(best)})"
    )
    if best.guessed:
        carries = _guess(best, f" {plan.unit_of(best.shown)}")
    elif best.bound == "heaviest":
        carries = (
            f"{best.label} carries {plan.amount(plan.highest)} or more, the heaviest load that was allowed"
        )
    return [f"Within {limit_words(plan.limits)}, {carries}.", *_against(search, best, others)]


def _guess(found: CapacityFound, unit: str = "") -> str:
    """What is known of an engine whose cells all said the same, and why it is no more."""
    if found.low is None and found.high is None:
        return f"what {found.label} carries is not known, as {found.ended}"
    return f"{found.label} carries {interval(found)}{unit}, and no more is known, as {found.ended}"


def _against(search: SearchResults, best: CapacityFound, others: list[CapacityFound]) -> Iterator[str]:
    ratios = {(ratio.a, ratio.b): ratio for ratio in search.ratios}
    for other in others:
        carries = _guess(other) if other.guessed else f"{other.label} carries {capacity_value(other)}"
        if other.guessed or best.guessed:
            said = f"{carries}: the two are not compared."
            yield said[:1].upper() + said[1:] if said.startswith("what ") else said
            continue
        forward = ratios.get((best.label, other.label))
        ratio = forward or _turned(ratios[other.label, best.label])
        if ratio.verdict == "more":
            yield f"{carries}: {best.label} carries {interval(ratio, 2)} times as much."
        else:
            yield f"{carries}: no difference is shown."


def _turned(ratio: CapacityRatio) -> CapacityRatio:
    """The same pair the other way round."""
    return CapacityRatio(
        a=ratio.b,
        b=ratio.a,
        value=1 / ratio.value,
        low=None if ratio.high is None else 1 / ratio.high,
        high=None if ratio.low is None else 1 / ratio.low,
        verdict=_OPPOSITE[ratio.verdict],
    )
