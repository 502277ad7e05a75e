"""Every command of `bench`, and their help: options in groups, names whole, descriptions beside them."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

import harness
from harness.cli.terminal import echo

#: What `bench --help` says of each command. Its module, `harness.cli.NAME`, with underscores for hyphens, is
#: imported when it is called.
COMMANDS = {
    "online": "Measure each engine's server under load: a trace, or a fixed number of requests in flight.",
    "offline": "Measure the throughput of a fixed batch of prompts, each engine in a process of its own.",
    "search": "Find the highest load that each engine carries within limits.",
    "tune": "Find settings of an engine that are better than its defaults, with a verdict on each.",
    "cancel": "Measure what clients that leave cost: time until a slot is free, tokens that nobody reads.",
    "compare": "Compare two runs of the same kind, with intervals and verdicts.",
    "history": "Keep results of runs, show their trend, judge a run by them.",
    "calibrate": "Measure the client against a server of known latency.",
    "report": "Render one or several runs into one self-contained HTML file, and the index of all reports.",
    "config": "Write a settings file for `--config`.",
    "schema": "Print the JSON Schema of a settings or results file, or of a row of a table.",
    "engines": "List, check, show and install engines.",
    "profile": "Profile the engines of a run (`bench profile RUN`), or compare two profiles (`… diff A B`).",
    "traces": "List, describe, download and convert traces.",
}


def sections(params: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the parameters of a command by the title of their group; that of `--config` comes last."""
    last = next((str(param.rich_help_panel) for param in params if param.name == "config"), "Options")
    groups: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    for param in params:
        usual = "Arguments" if param.param_type_name == "argument" else "Options"
        title = last if param.name == "help" else param.rich_help_panel or usual
        groups.setdefault(title, []).append(param)
    groups[last] = groups.pop(last)
    return {title: group for title, group in groups.items() if group}


#: For every command: `-h` is `--help`, and lines are as wide as the terminal up to this width.
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
#: Widest column of names; a longer name has a line of its own.
NAME_WIDTH = 34


class GroupedCommand(typer.core.TyperCommand):
    """A command whose help begins with examples and has a section for each group.

    Where options are `common`, `--help` shows these alone, and `--help-all` all.
    Typer's own panels leave a third of 80 columns for the descriptions of many options, and cut long words.
    """

    examples: tuple[str, ...] = ()
    common: tuple[str, ...] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one a line however long it is, as they are copied; then the sections."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))
        params, groups = self.get_params(ctx), {}
        if self.common and not ctx.meta.get("help_all"):
            by_name = {param.name: param for param in params}
            groups = {"Options": [by_name[name] for name in (*self.common, "help", "help_all")]}
        for title, shown in (groups or sections(params)).items():
            records = [record for param in shown if (record := param.get_help_record(ctx))]
            with formatter.section(title):
                formatter.write_dl([_plain(*record) for record in records], col_max=NAME_WIDTH)


def _plain(names: str, text: str) -> tuple[str, str]:
    """A switch and its opposite once, as `--[no-]x`; defaults without parentheses, as `on` and `off`; limits
    in words."""
    names = re.sub(r"--(\S+) / --no-\1", r"--[no-]\1", names)
    text = re.sub(r"\[default: \((.*)\)\]$", r"[default: \1]", text)
    text = re.sub(r"\bx>=(\S+)\]$", r"at least \1]", text)
    off = "  [default: off]" if "--[no-]" in names else ""
    return names, text.replace("[default: True]", "[default: on]").replace("  [default: False]", off)


class _OnDemand(typer.core.TyperGroup):
    """Imports only the command that is called: some imports take a second."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and load_command(name), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def load_command(name: str) -> Any:
    """The command of `harness.cli.NAME`: its `app` of several commands, or its function NAME."""
    function = name.replace("-", "_")
    gc.disable()  # what imports make stays: looking through it takes an eighth of their time
    try:
        module = import_module(f"harness.cli.{function}")
    finally:
        gc.enable()
    alone = typer.Typer(rich_markup_mode=None)
    if hasattr(module, "app"):
        alone.add_typer(module.app, name=name)
    else:
        alone.command(name, cls=GroupedCommand)(getattr(module, function))
    command = typer.main.get_group(alone).commands[name]
    if isinstance(command, GroupedCommand):
        command.examples, command.common = getattr(module, "EXAMPLES", ()), getattr(module, "COMMON", ())
    return command


app = typer.Typer(
    cls=_OnDemand,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    pretty_exceptions_enable=False,
    help="Compare LLM serving engines on real request traces.",
)


def _version(is_given: bool) -> None:
    if is_given:
        echo(f"rosebench {harness.__version__}")
        raise typer.Exit


@app.callback()
def _bench(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="print it and exit")
    ] = False,
) -> None:
    pass


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)
