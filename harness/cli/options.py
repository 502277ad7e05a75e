"""Command-line options from the settings models, so that every setting is defined once."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.models import ArgumentInfo

from harness.cli.terminal import echo
from harness.cli.trust import Trust, check_trust
from harness.engines.registry import installed_engines
from harness.engines.variants import check_name, engine_points
from harness.errors import UsageError
from harness.schema.loader import build
from harness.schema.settings import CommonSettings, OutputGroup, titles_of

Settings = TypeVar("Settings", bound=CommonSettings)

_output = partial(typer.Option, rich_help_panel=OutputGroup.title)


def _show_all(ctx: typer.Context, is_given: bool) -> None:
    if is_given:
        ctx.meta["help_all"] = True
        echo(ctx.get_help())
        raise typer.Exit


@dataclass(frozen=True)
class Output:
    """Options of every command that measures."""

    resume: Annotated[Path | None, _output(help="finish this run, of any command", metavar="RUN")] = None
    trust: Trust = False
    anyway: Annotated[
        bool,
        _output(
            "--anyway",
            envvar="BENCH_ANYWAY",
            help="measure without a look at what other programs do; else not beside much of it",
        ),
    ] = False
    serve: Annotated[
        int | None,
        _output(
            help="show finished cells in a browser meanwhile, at this port of this machine; 0: a free one",
            metavar="PORT",
        ),
    ] = None
    open_report: Annotated[bool, _output("--open", help="open the report in a browser")] = False
    as_json: Annotated[
        bool, _output("--json", help="print the answer and the results as JSON instead of the report's path")
    ] = False
    quiet: Annotated[bool, _output("--quiet", help="print nothing but the report's path")] = False
    help_all: Annotated[
        bool,
        _output("--help-all", is_eager=True, callback=_show_all, help="Show all options and exit."),
    ] = False


_Config = Annotated[Path | None, _output(help="YAML file with settings; options override it", metavar="FILE")]

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
    without: Collection[str] = (),
    derive: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: {},
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `--config` and an option for each field of `kind` and of Output, which are its first two
    arguments.

    Options stay text: pydantic alone parses them, in the same way as YAML. `--resume` replaces all settings:
    with it the first argument is None, and any other setting or option of the command is a UsageError.

    Args:
        without: Settings and fields of Output that are no options of the command.
        derive: Returns the settings that the command's own options mean.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(command, eval_str=True).parameters.values())[2:]
        defaults = {parameter.name: parameter.default for parameter in parameters}
        arguments = {
            parameter.name
            for parameter in parameters
            if any(isinstance(part, ArgumentInfo) for part in get_args(parameter.annotation))
        }
        hints = get_type_hints(Output, include_extras=True)
        of_output = [each for each in fields(Output) if each.name not in without]
        parameters += [_option(each.name, hints[each.name], each.default) for each in of_output]
        settings_options = [option for option in _options(kind) if option.name not in without]
        names = {option.name for option in settings_options}

        def run(config: Path | None, **values: Any) -> None:
            texts = {name: values.pop(name) for name in list(values) if name in names}
            output = Output(**{each.name: values.pop(each.name) for each in of_output})
            explicit = {name: text for name, text in texts.items() if text not in (None, [])}
            if output.resume is None:
                options = explicit | derive(values)
                settings = _build(kind, config, options, command.__name__)
                if config is not None:
                    of_file = kind.model_fields.keys() - options.keys()
                    check_trust(config, settings, output.trust, of_file)
                command(settings, output, **values)
                return
            changed = [name for name, default in defaults.items() if values[name] != default]
            if beside := [*explicit, *changed, *(["config"] if config else [])]:
                names_text = ", ".join(
                    name.upper() if name in arguments else "--" + name.replace("_", "-") for name in beside
                )
                raise UsageError(
                    f"--resume uses the run's own settings and cannot be combined with {names_text}",
                    f"leave out {names_text}",
                )
            command(None, output, **values)

        run.__doc__, run.__name__ = command.__doc__, command.__name__
        signature = [*parameters, _option("config", _Config), *settings_options]
        run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
        return run

    return decorate


def _build(kind: type[Settings], config: Path | None, options: dict[str, Any], command: str) -> Settings:
    """Return the settings, with every installed engine where none is named."""
    settings = build(kind, config, options, command)
    for engine in settings.engines:
        check_name(engine.name)
    if "engines" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"engines": installed_engines()})


def _option(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def settings_of(kind: type[CommonSettings]) -> list[str]:
    """Return the names of the settings that the command of `kind` has as options."""
    fields = kind.model_fields.items()
    return [name for name, field in fields if _extra(field).get("of_command", kind.command) == kind.command]


def _options(kind: type[CommonSettings]) -> Iterator[inspect.Parameter]:
    titles = titles_of(kind)
    for name in settings_of(kind):
        field = kind.model_fields[name]
        is_flag = field.annotation is bool
        option = typer.Option(
            help=field.description,
            metavar=None if is_flag else metavar(field),
            show_default=default_text(field) or False,
            autocompletion=None if is_flag else _completion(name, field),
            rich_help_panel=titles[name],
        )
        value: Any = (bool if is_flag else list[str] if _extra(field).get("repeatable") else str) | None
        yield _option(name, Annotated[value, option])


def _completion(name: str, field: FieldInfo) -> Callable[[str], list[str]]:
    """Return a function that completes choices, or names of engines after each comma, in the shell."""
    choices = engine_points() if name == "engines" else metavar(field).split("|")
    words = [word for word in choices if word.islower()]

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [before + comma + word for word in words if word.startswith(begun)]

    return complete


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
