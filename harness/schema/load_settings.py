"""What a load is made of, as the command line and YAML write it: `gamma:2`, `1:8:60`, `uniform:100:1024`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from harness.schema.base import Strict
from harness.schema.comma_lists import listed


class _Written(Strict):
    """A model that is also written as `PART:PART`; FORM says how, for errors."""

    FORM: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if isinstance(value, dict | cls):
            return value
        if not isinstance(value, str):
            raise ValueError(f"must be {cls.FORM}")
        parts = [part.strip() for part in value.split(":")]
        if (fields := cls.fields_of(parts)) is None:
            raise ValueError(f"{value!r} is not {cls.FORM}")
        return fields

    @classmethod
    def fields_of(cls, parts: list[str]) -> dict[str, str] | None:
        """The fields that the parts give; None where they have another form."""
        names = list(cls.model_fields)
        return dict(zip(names, parts, strict=True)) if len(parts) == len(names) else None


class ArrivalProcess(_Written):
    """How the times between arrivals are distributed: `poisson`, `constant`, or `gamma:CV`."""

    FORM = "poisson, constant or gamma:CV"

    kind: Literal["poisson", "gamma", "constant"]
    cv: float | None = Field(None, gt=0, le=100, description="coefficient of variation, with gamma")

    @classmethod
    def fields_of(cls, parts: list[str]) -> dict[str, str] | None:
        return dict(zip(cls.model_fields, parts, strict=False)) if len(parts) <= 2 else None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.kind == "gamma") != (self.cv is not None):
            raise ValueError(f"{self} is not {self.FORM}")
        return self

    def __str__(self) -> str:
        return self.kind if self.cv is None else f"{self.kind}:{self.cv:g}"


class RampSetting(_Written):
    """A request rate that moves evenly: `FROM:TO:SECONDS`."""

    FORM = "FROM:TO:SECONDS, two rates in requests/s and a time"

    from_req_per_s: float = Field(gt=0, allow_inf_nan=False)
    to_req_per_s: float = Field(gt=0, allow_inf_nan=False)
    seconds: float = Field(gt=0, allow_inf_nan=False)

    def __str__(self) -> str:
        return f"{self.from_req_per_s:g}:{self.to_req_per_s:g}:{self.seconds:g}"


class Uniform(_Written):
    """Whole numbers of tokens, each as likely as any other: `uniform:LEAST:MOST`."""

    FORM = "a number of tokens, or uniform:LEAST:MOST"

    kind: Literal["uniform"] = "uniform"
    least: int = Field(ge=1)
    most: int = Field(ge=1)

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.most < self.least:
            raise ValueError(f"{self.most} tokens are fewer than {self.least}")
        return self

    def __str__(self) -> str:
        return f"uniform:{self.least}:{self.most}"


def _lengths_kind(value: object) -> str | None:
    """The tag of `Lengths` that a value has; None: it is neither."""
    if isinstance(value, Uniform | dict) or (isinstance(value, str) and value.startswith("uniform:")):
        return "uniform"
    is_number = isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal())
    return "number" if is_number else None


#: Of a cell; their times alone take 0.8 GB.
MAX_REQUESTS = 10**8

Scales = Annotated[list[Annotated[float, Field(gt=0)]], BeforeValidator(listed), Field(min_length=1)]
Concurrency = Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(listed), Field(min_length=1)]
Rates = Annotated[
    list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(listed), Field(min_length=1)
]
#: Tokens of a prompt or an answer: the same for all, or drawn for each.
Lengths = Annotated[
    Annotated[int, Field(ge=1), Tag("number")] | Annotated[Uniform, Tag("uniform")],
    Discriminator(_lengths_kind, custom_error_type="lengths", custom_error_message=f"must be {Uniform.FORM}"),
]


def lengths_text(lengths: int | Uniform) -> str:
    """`64`, or `100 to 1,024`."""
    return f"{lengths:,}" if isinstance(lengths, int) else f"{lengths.least:,} to {lengths.most:,}"


def most(lengths: int | Uniform) -> int:
    """The most tokens that are drawn."""
    return lengths if isinstance(lengths, int) else lengths.most
