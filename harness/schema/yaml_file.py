"""YAML files that users write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from harness.errors import UsageError

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
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if key.id == "scalar":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise _GivenTwiceError(key.value, lines[key.value], line)
                lines[key.value] = line
        return super().construct_mapping(node, deep)


class _GivenTwiceError(yaml.YAMLError):
    """A key that is given in two lines, which may be the same one."""

    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(key)
        self.key = key
        self.where = f"lines {first} and {second}" if first != second else f"line {first}"


def read_yaml(path: Path, hint: str, unreadable: str = "", what: str = "") -> Any:
    """Return the content of the file at `path`.

    Args:
        hint: Says how such a file is written.
        unreadable: The hint if it cannot be read; empty: the same.
        what: Words before the path in that message.

    Raises:
        UsageError: It cannot be read, or is not YAML.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        message = f"{what}{path} cannot be read: {error.strerror}"
        raise UsageError(message, unreadable or hint) from None
    except _GivenTwiceError as error:
        raise UsageError(f"{path} gives {error.key} twice, in {error.where}", "remove one of them") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not YAML: {_fault(error)}", hint) from None


def _fault(error: yaml.YAMLError | ValueError | RecursionError) -> str:
    """Return what is wrong, and in which line if that is known."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        begin = error.context_mark.line if error.context_mark is not None else mark.line
        since = f" in what begins in line {begin + 1}" if begin != mark.line else ""
        return f"line {mark.line + 1}: {error.problem}{since}"
    return " ".join(str(error).partition("; use sys.")[0].split())
