"""YAML files that users write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from harness.errors import UsageError


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice; PyYAML takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.id == "scalar":
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"{key.value} is given twice, the second time in line {line}")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, hint: str, unreadable: str = "", what: str = "") -> Any:
    """What the file at `path` holds.

    Args:
        hint: How it is written.
        unreadable: The hint where it cannot be read; empty: the same.
        what: Before the path in that message.

    Raises:
        UsageError: It cannot be read, or is not YAML.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        message = f"{what}{path} cannot be read: {error.strerror}"
        raise UsageError(message, unreadable or hint) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        fault = "it is nested too deeply" if deep else " ".join(str(error).partition("; use sys.")[0].split())
        raise UsageError(f"{path} is not YAML: {fault}", hint) from None
