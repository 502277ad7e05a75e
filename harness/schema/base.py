"""The base of every schema: unknown keys are refused, numbers are finite."""

from pydantic import BaseModel, ConfigDict, ValidationError

#: What pydantic says, and plain words for it.
_WORDS = {
    "Value error, ": "",
    "Input should be ": "must be ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer": "a whole number",
    "a valid ": "a ",
}
#: What only a programmer of pydantic wants to know begins with these.
_ASIDES = (", unable to", ", got a number", " after validation")


class Strict(BaseModel):
    """A settings or result record. Unknown keys and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong: `where: what`, or `what` where it is the whole."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    what = plainly(first["msg"])
    if first["type"] == "extra_forbidden":
        what = f"there is no key {place.pop()!r}"
    elif first["type"] in ("model_type", "dict_type"):
        what = "it should have keys with values"
    elif place[-1:] == ["[key]"]:
        what = f"{place[-2]!r} is not a name that it can have: {what}"
        del place[-2:]
    return f"{'.'.join(place)}: {what}" if place else what


def plainly(message: str) -> str:
    """A message of pydantic in plain words."""
    for aside in _ASIDES:
        message = message.partition(aside)[0]
    for words, plain in _WORDS.items():
        message = message.replace(words, plain)
    return message
