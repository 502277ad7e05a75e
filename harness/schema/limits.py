"""Limits on statistics of a run, as `--gate` and `--slo` take them, and service levels."""

from __future__ import annotations

import re
from math import isinf
from typing import Any, Self

from pydantic import ConfigDict, PositiveFloat, model_validator

from harness.errors import UsageError, did_you_mean
from harness.schema.base import Strict, each_once
from harness.schema.metrics import METRICS, STATISTICS, latencies, rates

#: Names before the statistic, and in the results.
_LATENCIES = {METRICS[name].short_name: name for name in latencies("gated")}
_RATES = rates("gated")
ERROR_RATE = "error_rate"

_NUMBER = r"(?P<number>\d+(\.\d+)?([eE][+-]?\d+)?)"
_TERM = re.compile(rf"(?P<name>[a-z0-9_]+)\s*(?P<op><=|>=)\s*(?P<sign>[+-]?){_NUMBER}\s*(?P<unit>ms|s|%|)")
#: A limit on each request, as a service level has it.
_EACH = re.compile(rf"(?P<metric>[a-z0-9_]+)\s*=\s*{_NUMBER}")
#: The statistic that is to be within a limit on each request.
OF_EACH = "p99"
#: Form of a limit by itself.
LIMIT_HINT = "write it like ttft_p99<=200ms, ttft_ms=200, output_tok_per_s>=500 or error_rate<=1%"
#: Form of a term, by its name in errors.
_HINTS = {"gate": "write it like ttft_p99<=+10%, output_tok_per_s>=-3% or e2e_p50<=2s", "limit": LIMIT_HINT}


class GateTerm(Strict):
    """One limit.

    `limit` is relative to run A (0.1 for `+10%`) where `relative`, else in ms, in units a second, or for the
    error rate a share.
    """

    text: str
    metric: str
    statistic: str
    at_most: bool
    limit: float
    relative: bool


def is_latency(term: GateTerm) -> bool:
    """Return whether a limit is on a latency, in ms."""
    return term.metric in _LATENCIES.values()


def parse_gate(text: str, word: str = "gate") -> list[GateTerm]:
    """Return the terms between commas, all of which must hold.

    `METRIC OP SIGN N%` limits the ratio B / A: `ttft_p99<=+10%` is at most 1.1. `METRIC OP N` limits B
    itself. A metric is a latency with a statistic (`tpot_p90`), a rate, or `error_rate`. A limit on each
    request, `ttft_ms=200`, is `ttft_p99<=200ms`.

    Args:
        word: Name of a term in errors: gate, or limit.

    Raises:
        UsageError: A term is none of this.
    """
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise UsageError(f"{text!r} must have a {word} before and after each comma", _HINTS[word])
    return [_term(part, word) for part in parts]


def _term(text: str, word: str) -> GateTerm:
    each = _EACH.fullmatch(text)
    if each is not None and each["metric"] in _LATENCIES.values():
        text = f"{METRICS[each['metric']].short_name}_{OF_EACH}<={each['number']}ms"
    match = _TERM.fullmatch(text)
    if match is None or isinf(float(match["number"])):
        raise UsageError(f"{text!r} is not a {word}", _HINTS[word])
    metric, statistic = names_of(match["name"])
    relative, unit = bool(match["sign"]), match["unit"]
    if relative and (unit != "%" or metric == ERROR_RATE):
        raise UsageError(f"the {word} {text!r} has a sign and is no share of run A", _HINTS[word])
    number = float(match["sign"] + match["number"])
    if relative and number <= -100:
        raise UsageError(f"the {word} {text!r} asks for less than nothing", _HINTS[word])
    limit = number / 100 if relative else number * _scale(text, metric, unit, word)
    at_most = match["op"] == "<="
    return GateTerm(
        text=text, metric=metric, statistic=statistic, at_most=at_most, limit=limit, relative=relative
    )


def names_of(name: str) -> tuple[str, str]:
    """Return metric and statistic of `ttft_p99` or `req_per_s` as in the results. Raises UsageError."""
    latency, _, statistic = name.rpartition("_")
    if latency in _LATENCIES and statistic in STATISTICS:
        return _LATENCIES[latency], statistic
    if name in (*_RATES, ERROR_RATE):
        return name, name
    shown = [*(f"{latency}_p99" for latency in _LATENCIES), *_RATES, ERROR_RATE]
    every = [*(f"{latency}_{each}" for latency in _LATENCIES for each in STATISTICS), *_RATES, ERROR_RATE]
    meant = did_you_mean(name, every, cutoff=0.75)
    raise UsageError(
        f"there is no statistic {name!r}", f"{meant}known: {', '.join(shown)}; also {', '.join(STATISTICS)}"
    )


def _scale(text: str, metric: str, unit: str, word: str) -> float:
    """Return one of the term's unit in the unit of the results."""
    units = {"ms": 1.0, "s": 1000.0}
    if metric == ERROR_RATE or metric in _RATES:
        units = {"": 1.0} | ({"%": 0.01} if metric == ERROR_RATE else {})
    if unit in units:
        return units[unit]
    if unit == "%":
        raise UsageError(f"the {word} {text!r} does not say whether more or less", "write +10% or -10%")
    named = " or ".join(f"a number in {name}" if name else "a plain number" for name in units)
    raise UsageError(f"the {word} {text!r} needs {named}", _HINTS[word])


def _list_limits(schema: dict[str, Any]) -> None:
    """Show each metric that a limit can be set on as a field of its own in `bench schema`."""
    limit = schema.pop("additionalProperties")
    schema["properties"] = {name: limit | {"title": METRICS[name].label} for name in latencies("slo")}


def _of_each(limits: str) -> dict[str, float]:
    """Return limits on p99 as limits on each request. Raises ValueError if a metric has two."""
    try:
        terms = parse_gate(limits, "limit")
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from None
    for term in terms:
        if term.statistic != OF_EACH or not term.at_most or term.relative:
            raise ValueError(f"{term.text!r} is no limit on a request: write ttft_ms=200 or ttft_p99<=200ms")
    each_once([term.metric for term in terms])
    return {term.metric: term.limit for term in terms}


class Slo(Strict):
    """A service level: a request is good when it meets every limit given. All in ms."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_list_limits)
    __pydantic_extra__: dict[str, PositiveFloat | None]

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if isinstance(value, dict | Slo):
            return value
        if not isinstance(value, str):
            raise ValueError("must be like ttft_ms=200,tpot_ms=50 or ttft_p99<=200ms")
        return _of_each(value)

    @model_validator(mode="after")
    def _known(self) -> Self:
        metrics = latencies("slo")
        if unknown := sorted(self.__pydantic_extra__.keys() - metrics):
            raise ValueError(f"there is no {unknown[0]} to limit; known: {', '.join(metrics)}")
        return self
