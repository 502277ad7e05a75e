"""Command-line options made from dataclasses, so that every setting is written once."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer


def with_settings(*kinds: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `kinds`; it is called with an instance of each.

    The command's first parameters are those instances; what follows are options of its own.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[len(kinds) :]
        options = [parameter for kind in kinds for parameter in _options(kind)]

        def run(**values: Any) -> None:
            instances = [
                kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
                for kind in kinds
            ]
            command(*instances, **values)

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *options]}
        return run

    return decorate


def _options(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[hints[field.name], typer.Option(help=field.metadata["help"])],
        )
        for field in dataclasses.fields(kind)
    ]
