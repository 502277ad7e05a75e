"""Limits on what cells may show, as `bench search` and `bench tune` take them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from harness.errors import UsageError
from harness.metrics.percentiles import needed
from harness.schema.facts import FactKind
from harness.schema.limits import ERROR_RATE, LIMIT_HINT, GateTerm, parse_gate
from harness.schema.metrics import METRICS
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineSummary

#: A cell in which more requests than this share fail does not meet the limits, whatever these are.
MAX_FAILED = 0.01
#: Why a cell is invalid in which requests failed, where nothing else is wrong with it.
OF_FAILURES: frozenset[FactKind] = frozenset({"failures", "no_success"})
#: Notices of a queue that grew.
BEHIND: tuple[FactKind, ...] = ("behind", "stalled", "growing")


def parse_limits(text: str) -> list[GateTerm]:
    """The limits of `--slo`, such as `ttft_p99<=200ms,tpot_p99<=30ms`.

    Raises:
        UsageError: One is no limit on a latency or a rate by itself, or none or every load would meet it.
    """
    terms = parse_gate(text, "limit")
    for term in terms:
        if term.relative:
            raise UsageError(f"the limit {term.text!r} is relative to another run", LIMIT_HINT)
        lower_is_better = term.metric == ERROR_RATE or METRICS[term.metric].lower_is_better
        if term.at_most != lower_is_better:
            side = "at most" if lower_is_better else "at least"
            raise UsageError(
                f"the limit {term.text!r} asks for the worse: a good value is {side} the limit",
                f"write it with {'<=' if lower_is_better else '>='}",
            )
        if term.metric == ERROR_RATE and term.limit >= 1:
            raise UsageError(f"every load meets the limit {term.text!r}", "give a share below 100 %")
        if term.metric != ERROR_RATE and term.limit <= 0:
            always = "no load" if lower_is_better else "every load"
            raise UsageError(f"{always} meets the limit {term.text!r}", "give a limit above 0")
    return terms


def check_limits(terms: Sequence[GateTerm], settings: OnlineSettings) -> None:
    """Raises UsageError where no cell of these settings has a value for a limit."""
    for term in terms:
        if term.metric != ERROR_RATE and METRICS[term.metric].needs_slo:
            raise UsageError(
                f"the limit {term.text!r} is on requests within limits, which are not given",
                "give those limits",
            )
        if term.metric == "session_ms" and settings.turns is None and settings.loads[0].kind != "trace":
            raise UsageError(f"the limit {term.text!r} needs sessions", "give --dataset and --turns")


def enough_requests(what: str, statistic: str, n: int, measured: float = 1.0) -> None:
    """Raises UsageError where a cell of `n` requests, of which that share is measured, is too small for a
    percentile."""
    if not (statistic.startswith("p") and statistic[1:].isdigit()):
        return
    least = ceil(needed(int(statistic[1:])) / measured)
    if n < least:
        raise UsageError(
            f"{what} needs at least {least} requests in each cell, and there are {n}", f"give --n {least}"
        )


def failed_share(summary: OnlineSummary) -> float:
    """Return the share of a cell's requests that failed."""
    return summary.num_error / max(1, summary.num_requests)


def value_of(summary: OnlineSummary, term: GateTerm) -> float | None:
    """Return the value that a limit is on; None where no request succeeded."""
    if term.metric == ERROR_RATE:
        return failed_share(summary)
    return summary.value(term.metric, term.statistic) if summary.num_success else None


def holds(term: GateTerm, value: float | None) -> bool:
    """Return True if a value is on the right side of its limit; none is not."""
    return value is not None and (value <= term.limit if term.at_most else value >= term.limit)
