"""The base of every schema: unknown keys are refused, numbers are finite."""

from pydantic import BaseModel, ConfigDict, ValidationError


class Strict(BaseModel):
    """A settings or result record. Unknown keys and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong: `where: what`, or `what` where it is the whole."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what
