"""Command-line options from the settings models, so that every setting is defined once."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from harness.engines.registry import installed_engines
from harness.engines.variants import check_name, engine_points
from harness.errors import UsageError
from harness.schema.loader import build
from harness.schema.settings import CommonSettings

Settings = TypeVar("Settings", bound=CommonSettings)

Resume = Annotated[Path | None, typer.Option(help="finish this run, with its own settings", metavar="RUN")]

_SHORTER = {
    "list": "LIST",
    "EngineRef": "NAME[@VARIANT],…",
    "Slo": "METRIC=MS,…",
    "Window": "START,END",
    "ArrivalProcess": "poisson|gamma:CV|constant",
    "RampSetting": "FROM:TO:SECONDS",
    "Uniform": "uniform:A:B",
}


def with_settings(
    kind: type[CommonSettings],
    instead: str | None = None,
    without: Collection[str] = (),
    derive: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: {},
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `--config` and an option for each field of `kind`; its first argument is the settings.

    Options stay text: pydantic alone parses them, in the same way as YAML.

    Args:
        instead: An option of the command that replaces all settings. If it is given, the first argument is
            None, and any other setting is a UsageError.
        without: Settings that are no options of the command.
        derive: Returns the settings that the command's own options mean.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        options = [_config(), *(option for option in _options(kind) if option.name not in without)]
        offered = {option.name for option in options}

        def run(config: Path | None, **values: Any) -> None:
            texts = {name: values.pop(name) for name in list(values) if name in offered}
            explicit = {name: text for name, text in texts.items() if text is not None and text != []}
            if instead is None or values[instead] is None:
                settings = build(kind, config, explicit | derive(values), command.__name__)
                for engine in settings.engines:
                    check_name(engine.name)
                if "engines" not in settings.model_fields_set:
                    settings = settings.model_copy(update={"engines": installed_engines()})
                command(settings, **values)
                return
            if beside := [*explicit, *(["config"] if config else [])]:
                options = ", ".join("--" + name.replace("_", "-") for name in beside)
                raise UsageError(
                    f"--{instead} uses the run's own settings and cannot be combined with {options}",
                    f"leave out {options}",
                )
            command(None, **values)

        run.__doc__, run.__name__ = command.__doc__, command.__name__
        run.__signature__ = inspect.Signature([*parameters, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in [*parameters, *options]}
        return run

    return decorate


def _config() -> inspect.Parameter:
    option = typer.Option(help="YAML file with settings; options override it", metavar="FILE")
    return inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, option]
    )


def settings_of(kind: type[CommonSettings]) -> list[str]:
    """Return the names of the settings that the command of `kind` has as options."""
    fields = kind.model_fields.items()
    return [name for name, field in fields if _extra(field).get("of_command", kind.command) == kind.command]


def _options(kind: type[CommonSettings]) -> Iterator[inspect.Parameter]:
    for name in settings_of(kind):
        field = kind.model_fields[name]
        flag = field.annotation is bool
        option = typer.Option(
            help=field.description,
            metavar=None if flag else metavar(field),
            show_default=default_text(field) or False,
            autocompletion=None if flag else _completion(name, field),
        )
        value: Any = (bool if flag else list[str] if _extra(field).get("repeatable") else str) | None
        annotation = Annotated[value, option]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _completion(name: str, field: FieldInfo) -> Callable[[str], list[str]]:
    """Return a function that completes choices, or names of engines after each comma, in the shell."""
    words = [*engine_points()] if name == "engines" else [*_choices(field.annotation)]

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [before + comma + word for word in words if word.startswith(begun)]

    return complete


def _choices(annotation: Any) -> Iterator[str]:
    """Yield the values of every `Literal` in an annotation."""
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif get_origin(annotation) is not list:
        for part in get_args(annotation):
            yield from _choices(part)


def metavar(field: FieldInfo) -> str:
    """Return the form of the setting's value."""
    return str(_extra(field).get("metavar") or "|".join(_words(field.annotation)) or "TEXT")


def _words(annotation: Any) -> Iterator[str]:
    """Yield the forms of a value: choices as they are, types by name."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _words(get_args(annotation)[0])
    elif origin is Literal:
        yield from map(str, get_args(annotation))
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _words(part)
    elif origin is list:
        yield from (f"{word},…" if "…" not in word else word for word in _words(get_args(annotation)[0]))
    elif annotation is not type(None):
        yield _SHORTER.get(annotation.__name__, annotation.__name__.upper())


def default_text(field: FieldInfo) -> str:
    """Return the default as it would be given; empty if there is none."""
    if "shown" in (extra := _extra(field)):
        return str(extra["shown"])
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined or value == {}:
        return ""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
