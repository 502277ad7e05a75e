"""Prices of machines: a price file, and the price of one run's machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from harness.errors import UsageError
from harness.schema.base import Strict, first_fault
from harness.schema.yaml_file import read_yaml

HINT = "write it like `gpus: {NVIDIA H200: 3.5}` for a GPU hour, or `machine: 0.4` for a machine hour"
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]  # strict: true is not 1


class Prices(Strict):
    """A price file. A run on GPUs pays for its GPUs, another one for the machine."""

    currency: str = Field("$", min_length=1, max_length=8)
    gpus: dict[Annotated[str, Field(min_length=1)], Amount] = Field(
        default_factory=dict, description="of an hour, by the GPU's name or a part of it; the longest counts"
    )
    machine: Amount | None = Field(None, description="of an hour of the whole machine")

    @model_validator(mode="after")
    def _some(self) -> Prices:
        if not self.gpus and self.machine is None:
            raise ValueError("it has neither gpus nor machine")
        return self


class Hourly(Strict):
    """The price of an hour of one run's machine."""

    amount: float
    currency: str
    of: str = Field(description="what is paid for: `2 × NVIDIA H200`")


def read_prices(path: Path) -> Prices:
    """Read a price file, YAML.

    Raises:
        UsageError: It cannot be read, or says something else.
    """
    content = read_yaml(path, HINT, what="--price: ")
    try:
        return Prices.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path}: {first_fault(error)}", HINT) from None


def hourly(prices: Prices, environment: Mapping[str, Any], device: str) -> Hourly:
    """Return the price of an hour of a run on that machine.

    Args:
        environment: The run's hardware and software.

    Raises:
        UsageError: The file has no price for it.
    """
    names = [str(gpu.get("name", "GPU")) for gpu in environment.get("gpus") or []] if device == "cuda" else []
    if not names:
        if prices.machine is None:
            raise UsageError(
                "the prices have none for a machine, and the run used no GPU", "add `machine: 0.4`"
            )
        return Hourly(amount=prices.machine, currency=prices.currency, of="the machine")
    amount = math.fsum(_of_gpu(prices, name) for name in names)
    of = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    return Hourly(amount=amount, currency=prices.currency, of=of)


def _of_gpu(prices: Prices, name: str) -> float:
    fitting = [priced for priced in prices.gpus if priced.casefold() in name.casefold()]
    if not fitting:
        priced = f"known: {', '.join(prices.gpus)}; " if prices.gpus else ""
        raise UsageError(f"the prices have none for {name}", f"{priced}add it under gpus")
    return prices.gpus[max(fitting, key=len)]
