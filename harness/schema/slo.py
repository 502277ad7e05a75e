"""Service levels: what an answer has to keep to."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, PositiveFloat, model_validator

from harness.schema.base import Strict
from harness.schema.metrics import METRICS, latencies


def _list_limits(schema: dict[str, Any]) -> None:
    """What `bench schema` shows: each metric that a limit can be set on as a field of its own."""
    limit = schema.pop("additionalProperties")
    schema["properties"] = {name: limit | {"title": METRICS[name].label} for name in latencies("slo")}


class Slo(Strict):
    """A service level: a request is good when it meets every limit given. All in ms."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_list_limits)
    __pydantic_extra__: dict[str, PositiveFloat | None]

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part]
        if any(not sep for _, sep, _ in pairs):
            raise ValueError(f"{value!r} is not like ttft_ms=200,tpot_ms=50")
        return {key.strip(): limit.strip() for key, _, limit in pairs}

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = latencies("slo")
        if unknown := sorted(self.__pydantic_extra__.keys() - known):
            raise ValueError(f"there is no {unknown[0]} to limit; known: {', '.join(known)}")
        return self
