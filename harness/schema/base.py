"""The base of every schema, the text of validation errors, and lists as the command line writes them."""

from __future__ import annotations

from reprlib import Repr
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UsageError

T = TypeVar("T")

#: How A compares with B.
Verdict = Literal["better", "worse", "no difference", "not enough data"]

_REPR = Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 60


class Strict(BaseModel):
    """A settings or result record. Unknown keys and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)


class OfEngine(Strict):
    """A record about one engine variant."""

    engine: str
    variant: str | None = None
    label: str


def first_fault(error: ValidationError) -> str:
    """Return the first of pydantic's errors as `where: what`, or `what` if it is about the whole."""
    detail = error.errors()[0]
    keys = detail["loc"][:-1] if detail["type"] == "extra_forbidden" else detail["loc"]
    place = ".".join(map(str, keys))
    return f"{place}: {fault(detail)}" if place else fault(detail)


def fault(detail: ErrorDetails) -> str:
    """Return pydantic's message with the value; a message of our own stays as it is."""
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f"there is no key {detail['loc'][-1]!r}"
    if detail["type"] in ("value_error", "missing"):
        return message
    return f"{message} (given: {_REPR.repr(detail['input'])})"


def split(text: str) -> list[str]:
    """Return the parts of `a,b,c`. Raises ValueError if one is empty."""
    parts = [part.strip() for part in text.split(",")]
    if parts == [""]:
        raise ValueError("must not be empty")
    if "" in parts:
        raise ValueError("must have a value before and after each comma")
    return parts


def listed(value: object) -> object:
    """Accept `a,b,c`, or one number, for a list. Raises ValueError if a part is empty."""
    if isinstance(value, int | float):
        return [value]
    return split(value) if isinstance(value, str) else value


def each_once(values: list[T]) -> list[T]:
    """Return `values`. Raises ValueError if one is given twice."""
    texts = list(map(str, values))
    if twice := sorted({text for text in texts if texts.count(text) > 1}):
        raise ValueError(f"given twice: {', '.join(twice)}")
    return values


def split_option(option: str, text: str) -> list[str]:
    """Return the parts of `a,b,c` as an option gives them. Raises UsageError if one is empty."""
    try:
        return split(text)
    except ValueError as error:
        raise UsageError(f"{option}: {text!r} {error}", "write it like a,b,c") from None


def repeat_text(repeat: int | None) -> str:
    """Return `repeat 1` for the first one, which is 0 in files; None: `all repeats`."""
    return "all repeats" if repeat is None else f"repeat {repeat + 1}"
