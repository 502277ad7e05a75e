"""Settings of what differs from request to request: adapters, and the format of answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from harness.schema.comma_lists import split


def _weights(value: object) -> object:
    """Accept `NAME:WEIGHT,…` where a mapping is meant; a name alone weighs 1."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise ValueError("must be NAME:WEIGHT,…")
    found: dict[str, str] = {}
    for part in split(value):
        name, colon, weight = part.rpartition(":")
        name, weight = (name, weight) if colon else (part, "1")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = weight
    return found


def _some(weights: dict[str, float]) -> dict[str, float]:
    if any(weight < 0 for weight in weights.values()) or (weights and not sum(weights.values())):
        raise ValueError("weights are at least 0, and one of them is above 0")
    return weights


#: Weight of each adapter by its name in requests: `NAME:WEIGHT,…`.
Adapters = Annotated[dict[str, float], BeforeValidator(_weights), AfterValidator(_some)]
