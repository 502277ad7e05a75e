"""Help as plain text: options in groups, names whole, descriptions wrapped beside them.

Typer's own panels leave a third of 80 columns for the descriptions of many options, and cut long words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand


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


class GroupedCommand(TyperCommand):
    """A command whose help has a section for each group, and ends with examples."""

    examples: tuple[str, ...] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        for title, params in sections(self.get_params(ctx)).items():
            records = [record for param in params if (record := param.get_help_record(ctx))]
            with formatter.section(title):
                formatter.write_dl([_plain(*record) for record in records], col_max=NAME_WIDTH)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one a line however long it is: they are copied."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


def _plain(names: str, text: str) -> tuple[str, str]:
    """A switch and its opposite once, as `--[no-]x`; defaults without parentheses, as `on` and `off`; limits
    in words."""
    names = re.sub(r"--(\S+) / --no-\1", r"--[no-]\1", names)
    text = re.sub(r"\[default: \((.*)\)\]$", r"[default: \1]", text)
    text = re.sub(r"\bx>=(\S+)\]$", r"at least \1]", text)
    off = "  [default: off]" if "--[no-]" in names else ""
    return names, text.replace("[default: True]", "[default: on]").replace("  [default: False]", off)
