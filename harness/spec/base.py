"""The base of every schema: unknown keys are refused, numbers are finite."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A settings or result record. Unknown keys and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)
