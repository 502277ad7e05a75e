"""Judgement of limits: one holds, or does not, where the whole interval is on one side."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.contrast import Contrast, repeats_to_find
from harness.metrics.intervals import Ends, Estimate, error_rate_ends, level
from harness.schema.compare_results import Gated, Outcome
from harness.schema.limits import GateTerm
from harness.schema.load import Load
from harness.schema.metrics import METRICS


def outcome(term: GateTerm, bound: float, ci: Ends | None) -> Outcome:
    """Pass where the interval is wholly within `bound`, a regression where it is wholly beyond."""
    if ci is None:
        return "inconclusive"
    low, high = ci if term.at_most else (-ci[1], -ci[0])
    bound = bound if term.at_most else -bound
    return "pass" if high <= bound else "regression" if low > bound else "inconclusive"


def judge_ratio(term: GateTerm, engines: tuple[str, str], load: Load, found: Contrast | None) -> Gated:
    """A gate on a latency or a rate against run A's. `found` is None where A or B has no such statistic at
    that load, or A's is 0."""
    bound = 1 + term.limit
    if found is None:
        reason = "A or B has no such value, or A's is 0"
        return _gated(term, engines, load, None, None, bound, reason)
    ratio = found.ratio
    nothing = not found.a.value and found.b.repeats > 1 and found.b.has_log  # where A always has some
    gated = _gated(term, engines, load, ratio.value, (0.0, 0.0) if nothing else ratio.ci, bound)
    return _with_reason(gated, term, found.missing, found.spread, found.repeats, "of each", found.paired)


def judge_value(term: GateTerm, engines: tuple[str, str], load: Load, new: Estimate | None) -> Gated:
    """A gate on a latency or a rate by itself. `new` is run B's; None where it has no such statistic."""
    if new is None:
        return _gated(term, engines, load, None, None, term.limit, "B has no such value")
    gated = _gated(term, engines, load, new.value, level(new), term.limit)
    spread = new.spread(log=True) if new.has_log else None
    return _with_reason(gated, term, new.missing, spread, (new.repeats, new.repeats), "of B", paired=True)


def _with_reason(
    gated: Gated,
    term: GateTerm,
    missing: int,
    spread: float | None,
    repeats: tuple[int, int],
    whose: str,
    paired: bool = False,
) -> Gated:
    """The same; one that is inconclusive says why, and what would decide it.

    Args:
        missing: requests or tokens that a repeat lacks.
        spread: of the logarithm from repeat to repeat, seen in so many `repeats`; None: not seen.
        whose: more repeats.
        paired: there is one sample: repeats that are compared one by one, with the spread of their ratio, or
            those of one run.
    """
    if gated.outcome != "inconclusive" or gated.value is None:
        return gated
    more = None
    if missing:
        what = f"{METRICS[term.metric].sample}s"
        reason = f"{term.statistic} has no interval: each repeat needs {missing} more {what}"
    elif gated.ci is None and min(repeats) > 1:
        reason = "its repeats give no interval: measure more of them, or more requests"
    elif spread is None:
        reason = f"one repeat does not show how repeats differ: measure 2 or more {whose}"
    else:
        if gated.limit != gated.value:
            more = repeats_to_find(gated.limit / gated.value - 1, spread, repeats, paired=paired)
        reason = "the interval contains the limit; " + (
            f"about {more} repeats {whose} would decide"
            if more
            else "no number of repeats is likely to decide"
        )
    return gated.model_copy(update={"reason": reason, "needed_repeats": more})


def judge_errors(
    term: GateTerm, engines: tuple[str, str], load: Load, repeats: Sequence[tuple[int, int]]
) -> Gated:
    """A gate on run B's share of failed requests. `repeats`: how many failed, of how many, in each."""
    failed, counts = zip(*repeats, strict=True)
    ends = error_rate_ends(failed, counts)
    gated = _gated(term, engines, load, sum(failed) / sum(counts), ends, term.limit)
    reasons = []
    if gated.outcome == "inconclusive":
        failures = f"{sum(failed)} of {sum(counts)} requests failed"
        reasons.append(f"{failures}, which does not decide it: measure more requests in more repeats")
    if len(repeats) == 1:
        reasons.append("one repeat shows what one server does, not how they differ")
    return gated.model_copy(update={"reason": "; ".join(reasons)})


def _gated(
    term: GateTerm,
    engines: tuple[str, str],
    load: Load,
    value: float | None,
    ci: Ends | None,
    bound: float,
    reason: str = "",
) -> Gated:
    return Gated(
        gate=term.text,
        relative=term.relative,
        engine_a=engines[0],
        engine_b=engines[1],
        load=load,
        value=value,
        ci=ci,
        limit=bound,
        outcome=outcome(term, bound, ci),
        reason=reason,
    )
