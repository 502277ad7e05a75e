"""Engines by name, as settings name them."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.schema.base import Strict, listed

#: The registry has the names: installed packages add engines.
EngineName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
_REFERENCE = re.compile(r"^(?P<name>[a-z][a-z0-9_-]*)(@(?P<variant>[A-Za-z0-9][A-Za-z0-9._-]*))?$")
#: The engine that is a server somebody else started.
RUNNING_SERVER: EngineName = "openai"
#: Engines by default where installed ones are not looked for, or none is.
DEFAULT_ENGINES: tuple[EngineName, ...] = ("roseinfer", "vllm")


def asks_auto(engines: object) -> bool:
    """Return whether `engines` leaves the choice to the machine, as if none had been named."""
    return engines == ["auto"] or (isinstance(engines, str) and engines.strip() == "auto")


def _engines(value: object) -> object:
    """`listed`, where `auto` is no engine among others."""
    names = listed(value)
    if isinstance(names, list) and "auto" in names:
        raise ValueError(
            "auto stands alone: it means roseinfer and every other engine that is installed; "
            "give only auto, or the engines by name"
        )
    return names


def _is_empty(value: object) -> bool:
    return not value


class EngineRef(Strict):
    """An engine and one of its variants: `NAME` or `NAME@VARIANT`.

    With arguments or an environment, `variant` is the name of settings that are laid over `base` here.
    """

    name: EngineName
    variant: str | None = None
    base: str | None = Field(None, description="variant below `args` and `env`", exclude_if=_is_empty)
    args: list[str] = Field(default_factory=list, description="of the server", exclude_if=_is_empty)
    env: dict[str, str] = Field(default_factory=dict, description="of the server", exclude_if=_is_empty)

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if isinstance(value, dict | EngineRef):
            return value
        if not isinstance(value, str):
            raise ValueError("must be NAME or NAME@VARIANT")
        match = _REFERENCE.match(value)
        if match is None:
            raise ValueError(
                f"{value!r} is not NAME or NAME@VARIANT; names are in small letters, such as vllm"
            )
        return {"name": match["name"], "variant": match["variant"]}

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.is_inline and self.variant is None:
            raise ValueError(f"the settings of {self.name} have no name: give them as its variant")
        return self

    @property
    def is_inline(self) -> bool:
        """True if the variant is defined here, and not in a file."""
        return bool(self.args or self.env or self.base)

    def __str__(self) -> str:
        return f"{self.name}@{self.variant}" if self.variant else self.name


Engines = Annotated[list[EngineRef], BeforeValidator(_engines), Field(min_length=1)]
