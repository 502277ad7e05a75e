"""Settings of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field


def _amounts(value: object) -> object:
    """Accept `NAME:AMOUNT,…` where a mapping is meant; a name alone is 1."""
    if not isinstance(value, str):
        return value
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        name, _, amount = part.partition(":")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = amount or "1"
    return found


#: How much of each of Ray's resources: `NAME:AMOUNT,…`.
Resources = Annotated[dict[str, Annotated[float, Field(gt=0)]], BeforeValidator(_amounts)]
