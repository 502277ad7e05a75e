"""Files that an earlier command stored, read back. Errors name the file, the fault and a hint."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from harness.errors import UsageError
from harness.plain_text import visible_content
from harness.schema.base import first_fault
from harness.schema.calibration import Calibration
from harness.schema.run_info import RunInfo

Model = TypeVar("Model")

OTHER_VERSION = (
    "read it with the version of bench that wrote it (versions in run.json), or make the run again"
)


def read_stored(path: Path, kind: type[Model] | TypeAdapter[Model]) -> Model:
    """A JSON file as `kind`.

    Raises:
        UsageError: It cannot be read, or is not what this version of bench writes.
    """
    return checked(read_json(path), kind, str(path))


def read_of_run(
    run: Path, name: str, kind: type[Model] | TypeAdapter[Model], hint: str = OTHER_VERSION
) -> Model:
    """Return the file `name` of the run in the folder `run`. Raises UsageError as `read_stored`."""
    return checked(read_json(run / name, hint), kind, str(run / name), hint)


def read_json(path: Path, hint: str = OTHER_VERSION) -> object:
    """Return the content of a JSON file, its text without hidden characters.

    Raises:
        UsageError: It cannot be read, or is no JSON.
    """
    try:
        content: object = from_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint) from None
    except ValueError as error:
        raise UsageError(
            f"{path} is not as this version of bench writes it: Invalid JSON: {error}", hint
        ) from None
    return visible_content(content)


def checked(
    content: object, kind: type[Model] | TypeAdapter[Model], name: str, hint: str = OTHER_VERSION
) -> Model:
    """The content of the file called `name`, as `kind`.

    Raises:
        UsageError: It is not what this version of bench writes.
    """
    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        fault = first_fault(error)
        raise UsageError(f"{name} is not as this version of bench writes it: {fault}", hint) from None


def client_calibration(info: RunInfo) -> Calibration | None:
    """Return the calibration of the run's load client; None if it was not measured."""
    content = info.environment.get("calibration")
    if not isinstance(content, dict):
        return None
    return checked(content, Calibration, "the client's calibration in the run")
