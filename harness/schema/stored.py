"""What an earlier command stored, read back: a user is told which file is wrong, where, and the hint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from harness.errors import UsageError
from harness.schema.base import first_fault

Model = TypeVar("Model")

OTHER_VERSION = (
    "read it with the version of bench that wrote it (versions in run.json), or make the run again"
)


def read_stored(path: Path, kind: type[Model], hint: str = OTHER_VERSION) -> Model:
    """A JSON file as `kind`.

    Raises:
        UsageError: It cannot be read, or is not what this version of bench writes.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint) from None
    return _checked(TypeAdapter(kind).validate_json, content, str(path), hint)


def checked(content: object, kind: type[Model], name: str, hint: str = OTHER_VERSION) -> Model:
    """What stood in a file under `name`, as `kind`.

    Raises:
        UsageError: It is not what this version of bench writes.
    """
    return _checked(TypeAdapter(kind).validate_python, content, name, hint)


def _checked(validate: Callable[[Any], Model], content: object, name: str, hint: str) -> Model:
    try:
        return validate(content)
    except ValidationError as error:
        fault = first_fault(error)
        raise UsageError(f"{name} is not as this version of bench writes it: {fault}", hint) from None
