"""Settings of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from harness.schema.comma_lists import by_name


def _amounts(value: object) -> object:
    """Accept `NAME:AMOUNT,…` where a mapping is meant; a name alone is 1."""
    return by_name(value, "NAME:AMOUNT,…", _amount)


def _amount(part: str) -> tuple[str, str]:
    name, _, amount = part.partition(":")
    return name, amount or "1"


#: How much of each of Ray's resources: `NAME:AMOUNT,…`.
Resources = Annotated[dict[str, Annotated[float, Field(gt=0)]], BeforeValidator(_amounts)]
