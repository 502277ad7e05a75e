"""Settings from a YAML file and the command line; the command line wins."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from harness.errors import UsageError, did_you_mean
from harness.schema.base import fault
from harness.schema.files import read_yaml
from harness.schema.presets import preset_values
from harness.schema.setting_types import RUNNING_SERVER, asks_auto
from harness.schema.settings import CommonSettings

Settings = TypeVar("Settings", bound=CommonSettings)


def build(
    kind: type[Settings], config: Path | None, options: dict[str, Any], command: str | None = None
) -> Settings:
    """Return settings of `kind` from the YAML file `config`, overridden by `options`.

    Args:
        command: The command that they are given to; None: the kind's own.

    Raises:
        UsageError: The file cannot be read, a key is unknown, a value does not fit or has no effect.
    """
    from_file = {} if config is None else _read(config)
    hint = f"see `bench {command or kind.command} --help-all` for what each setting takes"

    def name(key: str) -> str:
        return (
            f"{key} in {config}" if key in from_file and key not in options else "--" + key.replace("_", "-")
        )

    values = from_file | options
    if (preset := values.get("preset")) is not None:
        values = preset_values(str(preset), kind.command, values) | values
    if asks_auto(values.get("engines")):
        del values["engines"]
    try:
        settings = kind.model_validate(values)
    except ValidationError as error:
        form = _right_form(error, kind, name)
        raise UsageError("; ".join(_problems(error, name)), form or _meant(error, kind) + hint) from None
    if idle := {key: reason for key, reason in settings.idle().items() if key in from_file | options}:
        problems = [f"{name(key)} {reason}" for key, reason in idle.items()]
        raise UsageError("; ".join(problems), _without(idle, settings, name))
    return settings


def _right_form(error: ValidationError, kind: type[CommonSettings], name: Callable[[str], str]) -> str:
    """Return how values are written of which another form was given; empty if that is not known."""
    keys = dict.fromkeys(str(detail["loc"][0]) for detail in error.errors() if detail["loc"])
    forms = {key: kind.model_fields[key].examples for key in keys if key in kind.model_fields}
    return "; ".join(f"write it like {name(key)} {each[0]}" for key, each in forms.items() if each)


def _without(idle: Mapping[str, str], settings: CommonSettings, name: Callable[[str], str]) -> str:
    """Return what to leave out, or to add, so that every setting has an effect."""
    if idle.get("base_url") and any(engine.name != RUNNING_SERVER for engine in settings.engines):
        return "leave out --engines: the server at the address is measured as it is"
    names = ", ".join(map(name, idle))
    others = dict.fromkeys(reason.partition(" ")[2] for reason in idle.values())
    if all(reason.startswith("excludes ") for reason in idle.values()):
        return f"leave out {names}, or {' and '.join(others)}"
    if all(reason.startswith("needs ") for reason in idle.values()):
        return f"leave out {names}, or add {' and '.join(others)}"
    return f"leave out {names}"


def _read(path: Path) -> dict[str, Any]:
    content = read_yaml(path, "write one `key: value` a line")
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
    """Return the settings whose names are like unknown ones, as the beginning of a hint."""
    keys: dict[str, object] = {
        str(detail["loc"][0]): detail["input"]
        for detail in error.errors()
        if detail["type"] == "extra_forbidden" and not detail["loc"][1:]
    }
    return "".join(_similar(key, value, kind) for key, value in keys.items())


def _similar(key: str, value: object, kind: type[CommonSettings]) -> str:
    """Return a hint with a setting like `key`; for `no_NAME: true`, an option alone, with `NAME: false`."""
    name = key.removeprefix("no_")
    if name != key and name in kind.model_fields and isinstance(value, bool):
        return f"did you mean {name}: {str(not value).lower()}? "
    return did_you_mean(key, kind.model_fields)


def _problems(error: ValidationError, name: Callable[[str], str]) -> list[str]:
    """Return what is wrong with each setting: what each of the types takes that were tried."""
    problems: dict[str, list[str]] = {}
    for detail in error.errors():
        key, *inner = map(str, detail["loc"] or ("",))
        place = f"{inner[-1]}: " if detail["type"] == "missing" else ""
        problems.setdefault(name(key) if key else "", []).append(place + fault(detail))
    return [": ".join(filter(None, (key, "; ".join(faults)))) for key, faults in problems.items()]
