"""Readers of files that users write in YAML and of stored JSON. Errors name file, fault and hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from harness.errors import UsageError
from harness.files import read_limited
from harness.plain_text import visible_content
from harness.schema.base import first_fault

_TAG = "tag:yaml.org,2002:"
#: Bytes of a file in YAML and in JSON.
_MAX_YAML, MAX_JSON = 1 << 20, 1 << 28
#: Values of a YAML file, those of a reference each time, and how deep they lie in each other.
_MAX_NODES, _MAX_DEPTH = 10_000, 50


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key that is given twice, and too much for a settings file; `1:8:30` is text.

    PyYAML takes the last of equal keys, and `1:8:30` for a number to the base of 60. Nine lines with
    references can mean a billion values.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0
        self._sizes: dict[Any, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_reference, before = self.check_event(yaml.AliasEvent), self._nodes
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise yaml.MarkedYAMLError(None, None, "it is nested too deeply", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        # Inside the value that it refers to, the size is not known yet.
        self._nodes += self._sizes.get(node, _MAX_NODES + 1) if is_reference else 1
        if self._nodes > _MAX_NODES:
            raise yaml.MarkedYAMLError(None, None, f"there are over {_MAX_NODES:,} values", mark)
        self._sizes[node] = self._nodes - before
        return node

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
        return yaml.load(read_limited(path, _MAX_YAML).decode(), _Loader)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path} is not YAML: {_fault(error)}", hint) from None


def _fault(error: yaml.YAMLError | ValueError) -> str:
    """Return what is wrong, and in which line if that is known."""
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
        return visible_content(from_json(read_limited(path, MAX_JSON)))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint) from None
    except ValueError as error:
        raise UsageError(f"{path} is damaged or cut off: Invalid JSON: {error}", hint) from None


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
