"""Service levels: what an answer has to keep to."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, PositiveFloat, model_validator

from harness.schema.base import Strict
from harness.schema.gate_terms import OF_EACH, parse_gate
from harness.schema.metrics import METRICS, latencies


def _list_limits(schema: dict[str, Any]) -> None:
    """What `bench schema` shows: each metric that a limit can be set on as a field of its own."""
    limit = schema.pop("additionalProperties")
    schema["properties"] = {name: limit | {"title": METRICS[name].label} for name in latencies("slo")}


def _of_each(limits: str) -> dict[str, float]:
    """Limits on p99 as limits on each request, the strictest of each metric."""
    found: dict[str, float] = {}
    for term in parse_gate(limits, "limit"):
        if term.statistic != OF_EACH or not term.at_most or term.relative:
            raise ValueError(
                f"{term.text!r} is no limit on a request, as ttft_ms=200 and ttft_p99<=200ms are; "
                "bench report --slo holds a run to it"
            )
        found[term.metric] = min(term.limit, found.get(term.metric, term.limit))
    return found


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
        if "<=" in value or ">=" in value:
            return _of_each(value)
        pairs = [part.partition("=") for part in value.split(",")]
        if any(not sep for _, sep, _ in pairs):
            raise ValueError(f"{value!r} is not like ttft_ms=200,tpot_ms=50 or ttft_p99<=200ms")
        limits = {key.strip(): limit.strip() for key, _, limit in pairs}
        if len(limits) < len(pairs):
            raise ValueError(f"{value!r} limits a metric twice")
        return limits

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = latencies("slo")
        if unknown := sorted(self.__pydantic_extra__.keys() - known):
            raise ValueError(f"there is no {unknown[0]} to limit; known: {', '.join(known)}")
        return self
