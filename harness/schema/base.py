"""The base of every schema, the text of validation errors, and lists as the command line writes them."""

from __future__ import annotations

import json
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UsageError

#: What pydantic says, and plain words for it.
_WORDS = {
    "Value error, ": "",
    "Input should be ": "must be ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer": "a whole number",
    "a valid ": "a ",
    "Unable to parse input string as an integer": "must be a whole number of fewer digits",
}
#: What only a programmer of pydantic wants to know begins with these.
_ASIDES = (", unable to", ", got a number", ", exceeded maximum", " after validation")
_KEYS = "must be keys with values"
#: What a value must be, by the type of pydantic's error, where its own words are not plain.
_MUST = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dataclass_type": _KEYS,
    "dict_type": _KEYS,
    "extra_forbidden": "is given to a key that there is not",
    "int_parsing_size": "must be a whole number of fewer digits",
    "invalid_key": "must be text, as every key",
    "list_type": "must be a list",
    "missing": "is missing",
    "model_attributes_type": _KEYS,
    "model_type": _KEYS,
    "path_type": "must be a path",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "too_short": "must have at least one value",
}
#: What is wrong with a value begins so where the value stands before it.
MUST = "must "
#: Characters of a value in an error at most.
_SHOWN = 60


class Strict(BaseModel):
    """A settings or result record. Unknown keys and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong: `where: what`, or `what` where it is the whole."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    what = fault(first)
    if first["type"] == "extra_forbidden":
        what = f"there is no key {place.pop()!r}"
    elif place[-1:] == ["[key]"]:
        what = f"{place[-2]!r} is not a name that it can have: {what}"
        del place[-2:]
    elif place and what.startswith(MUST):
        what = f"{value_text(first['input'])} {what}"
    return f"{'.'.join(place)}: {what}" if place else what


def fault(detail: ErrorDetails) -> str:
    """What is wrong with a value, in plain words; most begin with `must`."""
    words = _MUST.get(detail["type"])
    return plainly(detail["msg"]) if words is None else words.format_map(detail.get("ctx", {}))


def value_text(value: object) -> str:
    """A value as YAML writes it on one line, text in quotes; cut where it is long."""
    if isinstance(value, str):
        text = repr(value)
    elif value is None or isinstance(value, bool | list | dict):
        try:
            text = json.dumps(value, default=str, ensure_ascii=False)
        except ValueError:  # YAML's anchors can put a list into itself
            text = str(value)
    else:
        text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def plainly(message: str) -> str:
    """A message of pydantic in plain words."""
    for aside in _ASIDES:
        message = message.partition(aside)[0]
    for words, plain in _WORDS.items():
        message = message.replace(words, plain)
    return message


def split(text: str) -> list[str]:
    """The parts of `a,b,c`. Raises ValueError: one is empty."""
    parts = [part.strip() for part in text.split(",")]
    if parts == [""]:
        raise ValueError("must not be empty")
    if "" in parts:
        raise ValueError("must have a value before and after each comma")
    return parts


def listed(value: object) -> object:
    """Accept `a,b,c`, or one number, where a list is meant. Raises ValueError: a part is empty."""
    if isinstance(value, int | float):
        return [value]
    return split(value) if isinstance(value, str) else value


def by_name(value: object, form: str, read: Callable[[str], tuple[str, str]]) -> object:
    """Accept what `form` shows, a list with commas, where a mapping is meant.

    Args:
        read: The name and the value of a part.

    Raises:
        ValueError: it is neither, or a name is given twice.
    """
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise ValueError(f"must be {form}")
    found: dict[str, str] = {}
    for name, text in map(read, split(value)):
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = text
    return found


def split_option(option: str, text: str) -> list[str]:
    """The parts of `a,b,c` as an option gives them. Raises UsageError: one is empty."""
    try:
        return split(text)
    except ValueError as error:
        raise UsageError(f"{option}: {text!r} {error}", "write it like a,b,c") from None
