"""Readers of files that users write in YAML and of stored JSON. Errors name file, fault and hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from harness.errors import UsageError
from harness.plain_text import visible_content
from harness.schema.base import first_fault

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key that is given twice, and takes `1:8:30` for text.

    PyYAML takes the last of equal keys, and `1:8:30` for a number to the base of 60.
    """

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_number = tag in (f"{_TAG}int", f"{_TAG}float")
        return f"{_TAG}str" if is_number and ":" in value and implicit[0] else tag

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if key.id == "scalar" and key.value in keys:
                raise yaml.MarkedYAMLError(None, None, f"{key.value} is given twice", key.start_mark)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, hint: str) -> Any:
    """Return the content of the file at `path`.

    Args:
        hint: Says how such a file is written.

    Raises:
        UsageError: It cannot be read, or is not YAML.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not YAML: {_fault(error)}", hint) from None


def _fault(error: yaml.YAMLError | ValueError | RecursionError) -> str:
    """Return what is wrong, and in which line if that is known."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        return f"line {mark.line + 1}: {error.problem}"
    return " ".join(str(error).partition("; use sys.")[0].split())


Model = TypeVar("Model")

OTHER_VERSION = (
    "read it with the version of bench that wrote it (versions in run.json), or make the run again"
)


def read_stored(path: Path, kind: type[Model] | TypeAdapter[Model], hint: str = OTHER_VERSION) -> Model:
    """Return the content of a JSON file as `kind`.

    Raises:
        UsageError: It cannot be read, or is not what this version of bench writes.
    """
    return checked(read_json(path, hint), kind, str(path), hint)


def read_if_there(path: Path, kind: type[Model] | TypeAdapter[Model]) -> Model | None:
    """Return `read_stored` of a file; None where there is none."""
    return read_stored(path, kind) if path.exists() else None


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
