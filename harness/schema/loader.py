"""Settings from a YAML file and the command line; the command line wins."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UsageError
from harness.schema.base import MUST, fault, value_text
from harness.schema.engine_ref import asks_auto
from harness.schema.presets import preset_values
from harness.schema.settings import CommonSettings
from harness.schema.yaml_file import read_yaml

Settings = TypeVar("Settings", bound=CommonSettings)

_MUST_BE = MUST + "be "


def build(
    kind: type[Settings], config: Path | None, given: dict[str, Any], command: str | None = None
) -> Settings:
    """Settings of `kind` from the YAML file `config`, overridden by `given`.

    Args:
        command: The one that they are given to; None: the kind's own.

    Raises:
        UsageError: The file cannot be read, a key is unknown, a value does not fit or has no effect.
    """
    from_file = {} if config is None else _read(config)
    hint = f"see `bench {command or kind.command} --help` for what each setting takes"

    def name(key: str) -> str:
        return f"{key} in {config}" if key in from_file and key not in given else "--" + key.replace("_", "-")

    values = from_file | given
    if (preset := values.get("preset")) is not None:
        values = preset_values(str(preset), kind.command, values) | values
    if asks_auto(values.get("engines")):
        del values["engines"]
    try:
        settings = kind.model_validate(values)
    except ValidationError as error:
        raise UsageError("; ".join(_problems(error, name, values)), _meant(error, kind) + hint) from None
    if idle := {key: reason for key, reason in settings.idle().items() if key in from_file | given}:
        problems = [f"{name(key)} {reason}" for key, reason in idle.items()]
        raise UsageError("; ".join(problems), hint)
    return settings


def _read(path: Path) -> dict[str, Any]:
    content = read_yaml(path, "write one `key: value` a line", "check --config", "the settings file ")
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings by name", "write one `key: value` a line")
    if "schema_version" in content and isinstance(words := content.get("command"), list):
        raise UsageError(
            f"{path} is the record of a run and no settings file",
            f"for the same settings, give the command of that run: {shlex.join(map(str, words))}",
        )
    named: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name in named:
            raise UsageError(f"{path} gives {name} twice, with `-` and with `_`", "remove one of them")
        named[name] = value
    return named


def _meant(error: ValidationError, kind: type[CommonSettings]) -> str:
    """The settings whose names are like unknown ones, as the beginning of a hint; of `no_NAME: true`, which
    is an option and no key, `NAME: false`."""
    unknown = [detail for detail in error.errors() if detail["type"] == "extra_forbidden"]
    similar = [match for detail in unknown for match in _similar(detail, kind)]
    return f"did you mean {' and '.join(similar)}? " if similar else ""


def _similar(detail: ErrorDetails, kind: type[CommonSettings]) -> list[str]:
    name = str(detail["loc"][0])
    field = kind.model_fields.get(name.removeprefix("no_"))
    if field is not None and field.annotation is bool:
        return [f"{name.removeprefix('no_')}: {'true' if detail['input'] is False else 'false'}"]
    return get_close_matches(name, kind.model_fields, 1)


def _problems(error: ValidationError, name: Callable[[str], str], values: dict[str, Any]) -> list[str]:
    """What is wrong, once for each value, in the user's words."""
    found: dict[tuple[str, str], list[ErrorDetails]] = {}
    for detail in error.errors():
        key = ": ".join([*map(name, map(str, detail["loc"][:1])), *_inner_keys(detail, values)])
        found.setdefault((key, value_text(detail["input"])), []).append(detail)
    return [_problem(key, value, details) for (key, value), details in found.items()]


def _inner_keys(detail: ErrorDetails, values: Any) -> Iterator[str]:
    """The keys below the setting's that lead to the value, as they were given."""
    *place, last = detail["loc"] or [""]
    for depth, part in enumerate(place if detail["type"] == "extra_forbidden" else [*place, last]):
        if isinstance(values, dict) and part in values:
            values = values[part]
            if depth:
                yield str(part)
        elif isinstance(values, list) and isinstance(part, int):
            values = values[part]


def _problem(key: str, value: str, details: list[ErrorDetails]) -> str:
    """All that pydantic says of one value; of several types that were tried, each says what it takes."""
    kind, place = details[0]["type"], details[0]["loc"]
    wanted = list(dict.fromkeys(map(fault, details)))
    if not key:
        return wanted[0]
    if kind == "extra_forbidden":
        return f"{key}: there is no {place[-1]}" if place[1:] else f"{key} is not a setting of this command"
    if kind == "missing":
        return f"{key}: {', '.join(str(detail['loc'][-1]) for detail in details)} must be given"
    if all(text.startswith(_MUST_BE) for text in wanted):
        return f"{key}: {value} must be {' or '.join(text.removeprefix(_MUST_BE) for text in wanted)}"
    return f"{key}: {'; '.join(f'{value} {text}' if text.startswith(MUST) else text for text in wanted)}"
