"""Command-line options made from dataclasses, so that every setting is written once, and their help."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

#: For every command: `-h` is `--help`, and lines are as wide as the terminal up to this width.
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
#: Widest column of names in a help text; a longer name has a line of its own.
_NAME_WIDTH = 34
#: A hyphen while texts are wrapped: lines are not broken after it, as within the name of an option.
_UNBROKEN = "\N{NON-BREAKING HYPHEN}"


class PlainCommand(TyperCommand):
    """A command with plain help: a section for its own options and for each kind of settings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            title = getattr(param, "rich_help_panel", None) or "Options"
            if record := param.get_help_record(ctx):
                sections.setdefault(title, []).append(_plain(*record))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=_NAME_WIDTH)
        formatter.buffer[:] = [part.replace(_UNBROKEN, "-") for part in formatter.buffer]


def _plain(names: str, text: str) -> tuple[str, str]:
    """Defaults of switches as `on`, or none. Both names of a switch stay whole: programs read them here."""
    if " / --no-" in names:
        text = re.sub(r"  \[default: no-\S+\]$", "", text)
        text = re.sub(r"\[default: \S+\]$", "[default: on]", text)
    names = re.sub(r"<list\[(\w+)\]>", r"<\1>", names).replace(" range>", ">")
    return names, text.replace("-", _UNBROKEN)


def with_settings(*kinds: type[Any], **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `kinds`; it is called with an instance of each.

    The command's first parameters are those instances; what follows are options of its own.

    Args:
        defaults: Of fields that have another one in this command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(command, eval_str=True).parameters.values())[len(kinds) :]
        options = [parameter for kind in kinds for parameter in _options(kind, defaults)]

        def run(**values: Any) -> None:
            instances = [
                kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
                for kind in kinds
            ]
            command(*instances, **values)

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__signature__ = inspect.Signature([*parameters, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*parameters, *options]}
        return run

    return decorate


def _options(kind: type[Any], defaults: Mapping[str, Any]) -> list[inspect.Parameter]:
    hints, title = get_type_hints(kind), kind.__name__.removesuffix("Config")
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(field.name, field.default),
            annotation=Annotated[
                hints[field.name], typer.Option(help=field.metadata["help"], rich_help_panel=title)
            ],
        )
        for field in dataclasses.fields(kind)
    ]
