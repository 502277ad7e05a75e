"""Help as plain text: options in groups, names whole, descriptions wrapped beside them."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

from harness.cli.option_groups import in_groups

#: For every command: `-h` is `--help`, and lines are as wide as the terminal up to this width.
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
#: Widest column of names; a longer name has a line of its own.
NAME_WIDTH = 34


class GroupedCommand(TyperCommand):
    """A command whose help ends with examples and, if it takes settings, has a section for each group."""

    examples: tuple[str, ...] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        params = {str(param.name): param for param in self.get_params(ctx)}
        if "config" not in params:
            super().format_options(ctx, formatter)
            return
        for title, names in in_groups(list(params)).items():
            records = (params[name].get_help_record(ctx) for name in names)
            with formatter.section(title):
                formatter.write_dl([_plain(*record) for record in records if record], col_max=NAME_WIDTH)

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
