"""Limits of a search or a tuning, in words."""

from __future__ import annotations

from harness.report.text.numbers import several
from harness.schema.limits import ERROR_RATE, GateTerm, is_latency, parse_gate
from harness.schema.metric import MS
from harness.schema.metrics import METRICS


def limit_words(limits: str) -> str:
    """`TTFT p99 ≤ 200 ms and TPOT p99 ≤ 30 ms` of `ttft_p99<=200ms,tpot_p99<=30ms`."""
    return several(map(term_words, parse_gate(limits, "limit")))


def term_words(term: GateTerm) -> str:
    """`TTFT p99 ≤ 200 ms`, `output tok/s ≥ 500`."""
    sign = "≤" if term.at_most else "≥"
    if term.metric == ERROR_RATE:
        return f"failed requests {sign} {100 * term.limit:g} %"
    label = METRICS[term.metric].label
    if not is_latency(term):
        return f"{label} {sign} {term.limit:g}"
    value = f"{term.limit:g} ms" if term.limit < MS else f"{term.limit / MS:g} s"
    return f"{label} {term.statistic} {sign} {value}"
