"""Settings of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from harness.schema.comma_lists import split


def _amounts(value: object) -> object:
    """Accept `NAME:AMOUNT,…` where a mapping is meant; a name alone is 1."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise ValueError("must be NAME:AMOUNT,…")
    found: dict[str, str] = {}
    for part in split(value):
        name, _, amount = part.partition(":")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = amount or "1"
    return found


#: How much of each of Ray's resources: `NAME:AMOUNT,…`.
Resources = Annotated[dict[str, Annotated[float, Field(gt=0)]], BeforeValidator(_amounts)]
