"""The part of a cell that is measured."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from harness.schema.base import Strict


class Window(Strict):
    """A part of a cell, in seconds since its first scheduled arrival: `START,END`."""

    start_s: float = Field(ge=0)
    end_s: float = Field(ge=0)

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if isinstance(value, dict | Window):
            return value
        if not isinstance(value, str):
            raise ValueError("must be START,END in seconds")
        start, comma, end = value.partition(",")
        if not comma:
            raise ValueError(f"{value!r} is not START,END in seconds")
        return {"start_s": start.strip(), "end_s": end.strip()}

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if self.end_s < self.start_s:
            raise ValueError(f"{self.end_s:g} s is before {self.start_s:g} s")
        return self
