"""Reference pages made of the code: the commands, the files of a run, and what a package may add."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import TypeAdapter

from harness.cli.commands import COMMANDS, load_command, sections
from harness.cli.schema import SCHEMAS
from roseinfer.cli import app as roseinfer_app

#: Files of a run by their names in `bench schema`, each of which may use objects of those before it.
FILES = ("online-results", "run", "journal-entry")
ROOT = Path(__file__).parents[2]
RECORDS = """# Files of a run

A run of `bench online` is a folder. `requests.parquet` and `chunks.parquet` hold the raw times, and
everything else is computed from them. `bench schema NAME` prints the JSON Schema of a JSON file; its objects
are listed below.

| file | holds |
|---|---|
| `run.json` | what was decided before the first request, and what was started |
| `online_results.json`, `offline_results.json` | statistics, comparisons, what is missing |
| `journal.jsonl` | a line for each finished cell |
| `requests.parquet`, `chunks.parquet` | [raw times](#raw-times) |
| `server.parquet` | what servers say of themselves: [columns](#raw-times) |
| `results.csv` | every number in one tidy table |
| `summary.md`, `report.html`, `figures/` | for reading |

## Raw times

```python
{columns}
```

```python
{stored}
```

{objects}
"""
EXTEND = """# Extend it

A package of yours adds an engine, a metric or a trace format through an entry point; the
[tutorial](../tutorial.md) builds one of each.

## Engines: `rosebench.engines`

::: harness.engines.local.LocalEngine

::: harness.engines.base.EngineSettings

::: harness.engines.base.RequestSettings

## Metrics: `rosebench.metrics`

::: harness.schema.metric

## Trace formats: `rosebench.traces`

::: harness.traces.format.Format

::: harness.traces.trace.Trace
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    columns = (ROOT / "harness/records/columns.py").read_text(encoding="utf-8")
    stored = (ROOT / "harness/records/stored.py").read_text(encoding="utf-8").partition("\n\n\ndef ")[0]
    pages = {
        "bench": "# bench\n\n" + "\n".join(_bench()),
        "roseinfer": "# roseinfer\n\n" + "\n".join(_group(typer.main.get_group(roseinfer_app), "roseinfer")),
        "records": RECORDS.replace("{columns}", columns)
        .replace("{stored}", stored)
        .replace("{objects}", "\n".join(_objects())),
        "extend": EXTEND,
    }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def _objects() -> Iterator[str]:
    """A table of fields for every object of the files of a run, each object where it first appears."""
    titles: set[str] = set()
    for name in FILES:
        schema = TypeAdapter(SCHEMAS[name]).json_schema()
        objects = {schema["title"]: schema} if "properties" in schema else {}
        others = schema.get("$defs", {})
        yield f"## {name}\n"
        for title, definition in (objects | others).items():
            if title in titles or "properties" not in definition:
                continue
            titles.add(title)
            yield f"### {title}\n\n{definition.get('description', '')}\n\n| field | type | |\n|---|---|---|"
            required = definition.get("required", [])
            for field, about in definition["properties"].items():
                star = "" if field in required else ", optional"
                text = about.get("description", "").replace("|", "\\|")
                yield f"| `{field}` | {_type(about, others)}{star} | {text} |"
            yield ""


def _type(schema: dict[str, Any], others: dict[str, Any]) -> str:
    """The type of a field in words, with links to objects, which are among `others` by their names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if "properties" in others[name] else _type(others[name], others)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(option, others) for option in options))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind: str = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}), others)}"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict):
        return f"object of {_type(values, others)}"
    return kind


def _bench() -> Iterator[str]:
    for name in COMMANDS:
        command = load_command(name)
        yield from (_group if hasattr(command, "commands") else _command)(command, f"bench {name}")


def _group(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        yield from _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    """A heading, what it does, how it is called, and a table of options for each group of them."""
    context = typer.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"## {path}\n\n{command.help or ''}\n\n    {usage}\n"
    for title, params in sections(command.get_params(context)).items():
        yield from _table(title, params)
    if examples := getattr(command, "examples", ()):
        yield "**Examples**\n\n" + indent("\n".join(examples), "    ") + "\n"


def _table(title: str, params: list[Any]) -> Iterator[str]:
    if not params:
        return
    yield f"**{title}**\n\n| | | default |\n|---|---|---|"
    for param in params:
        names = "<br>".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
        text = (getattr(param, "help", None) or "").replace("|", "\\|")
        yield f"| {names} | {text} | {_default(param)} |"
    yield ""


def _default(param: Any) -> str:
    shown = getattr(param, "show_default", None)
    value = shown.strip("()") if isinstance(shown, str) else param.default
    if value is None or value == "" or callable(value):
        return "required" if param.required else ""
    if value in (True, False, "True", "False"):
        return "on" if str(value) == "True" else "off"
    return f"`{value if isinstance(value, str) else json.dumps(value, default=str)}`"
