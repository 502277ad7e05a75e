"""`bench config init`: a settings file to begin with."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic.fields import FieldInfo

from harness.cli.options import default_text, metavar, settings_of
from harness.cli.terminal import echo
from harness.errors import UsageError
from harness.files import write_whole
from harness.schema.online_settings import OnlineSettings
from harness.schema.settings import CommonSettings, OfflineSettings, titles_of

KINDS: dict[str, type[CommonSettings]] = {
    "online": OnlineSettings,
    "offline": OfflineSettings,
    "search": OnlineSettings,
    "tune": OnlineSettings,
}
WIDTH = 100

app = typer.Typer(no_args_is_help=True, help="Write a settings file for `--config`.")


@app.callback()
def _config() -> None:
    pass


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="where it is written")] = Path("bench.yaml"),
    command: Annotated[
        Literal["online", "offline", "search", "tune"],
        typer.Option("--for", help="the command that it is for"),
    ] = "online",
) -> None:
    """Write every setting with its default, commented out, and the JSON Schema by which editors complete."""
    if not file.name:
        raise UsageError(f"{file} is not a file", "name one, such as bench.yaml")
    schema = file.with_suffix(".schema.json")
    for path in (file, schema):
        if path.exists():
            raise UsageError(f"{path} is there already", "name another file, or remove it")
    write_whole(schema, (json.dumps(KINDS[command].model_json_schema(), indent=2) + "\n").encode())
    write_whole(file, settings_file(command, schema.name).encode())
    echo(file)
    echo(schema)


def settings_file(command: str, schema: str) -> str:
    """Return the YAML for `bench COMMAND`; `schema` is the place of its JSON Schema."""
    kind = KINDS[command]
    lines = [
        f"# yaml-language-server: $schema={schema}",
        f"# Settings of `bench {command} --config FILE`. Remove the # before a setting to give it;",
        "# options of the command line win.",
    ]
    titles, without = titles_of(kind), getattr(import_module(f"harness.cli.{command}"), "DECIDED", ())
    for title in dict.fromkeys(titles.values()):
        names = [name for name in settings_of(kind) if titles[name] == title and name not in without]
        lines += ["", f"## {title}"] if names else []
        for name in names:
            lines += _setting(name, kind.model_fields[name])
    return "\n".join(lines) + "\n"


def _setting(name: str, field: FieldInfo) -> Iterator[str]:
    """Yield the meaning of a setting and its default, or how a value is written if it has none."""
    yield ""
    yield from textwrap.wrap(field.description or "", WIDTH, initial_indent="# ", subsequent_indent="# ")
    value = default_text(field)
    if value in ("True", "False"):
        value = value.lower()
    yield f"#{name}: {metavar(field) if field.default is None else value or metavar(field)}"
