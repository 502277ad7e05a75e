"""Settings from a YAML file and the command line; the command line wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from harness.errors import UsageError
from harness.spec.settings import CommonSettings

Settings = TypeVar("Settings", bound=CommonSettings)


def build(kind: type[Settings], config: Path | None, given: dict[str, Any]) -> Settings:
    """Settings of `kind` from the YAML file `config`, overridden by `given`.

    Raises:
        UsageError: The file cannot be read, a key is unknown or a value does not fit.
    """
    from_file = {} if config is None else _read(config)
    try:
        return kind.model_validate(from_file | given)
    except ValidationError as error:
        problems = "; ".join(_problem(detail, from_file.keys() - given.keys()) for detail in error.errors())
        raise UsageError(problems, "see `bench --help` of the command for what each setting takes") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the settings file {path} cannot be read: {error.strerror}", "check --config") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}", "write one `key: value` a line") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a list of settings", "write one `key: value` a line")
    return {str(key).replace("-", "_"): value for key, value in content.items()}


def _problem(detail: Any, file_keys: set[str]) -> str:
    """One pydantic error in the user's words."""
    message = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:
        return str(message)
    field = str(detail["loc"][0])
    name = field if field in file_keys else "--" + field.replace("_", "-")
    if detail["type"] == "extra_forbidden":
        return f"{name} is not a setting of this command"
    return f"{name}: {message}, not {detail['input']!r}"
