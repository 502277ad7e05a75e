"""Settings of what differs from request to request: adapters, and the format of answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from harness.schema.comma_lists import by_name


def _weights(value: object) -> object:
    """Accept `NAME:WEIGHT,…` where a mapping is meant; a name alone weighs 1."""
    return by_name(value, "NAME:WEIGHT,…", _weight)


def _weight(part: str) -> tuple[str, str]:
    name, colon, weight = part.rpartition(":")  # a name may have colons
    return (name, weight) if colon else (part, "1")


def _some(weights: dict[str, float]) -> dict[str, float]:
    if any(weight < 0 for weight in weights.values()) or (weights and not sum(weights.values())):
        raise ValueError("weights are at least 0, and one of them is above 0")
    return weights


#: Weight of each adapter by its name in requests: `NAME:WEIGHT,…`.
Adapters = Annotated[dict[str, float], BeforeValidator(_weights), AfterValidator(_some)]
