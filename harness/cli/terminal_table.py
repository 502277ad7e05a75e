"""A report's table for a terminal: no word is cut, whatever the width."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from harness.plain_text import visible
from harness.report.tables.table import Table

#: Columns between two columns, and at both ends of a line.
_BETWEEN, _ENDS = 2, 3
#: A longer word is broken.
_LONGEST_WORD = 40


class TerminalTable:
    """Columns as wide as they need to be; text is wrapped between words where the terminal is narrow.

    Where not even the longest words fit beside each other, each row is a list of heads and values.
    """

    def __init__(self, table: Table) -> None:
        grouped = any(column.group for column in table.columns)
        self._title = visible(table.title)
        self._numeric = [column.numeric for column in table.columns]
        self._heads = [
            visible(f"{column.group}\n{column.title}" if grouped else column.title)
            for column in table.columns
        ]
        self._full = list(map(visible, table.headers))
        self._lines = [list(map(visible, line)) for line in table.lines]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        if widths is not None:
            yield self._as_columns(widths)
        else:
            yield Text(self._title)
            for line in self._lines:
                yield self._as_list(line)

    def _widths(self, most: int) -> list[int] | None:
        """Of the columns, in all at most that wide; None where that is too narrow."""
        least, wanted = [], []
        for numeric, head, *cells in zip(self._numeric, self._heads, *self._lines, strict=True):
            words = max(map(_longest_word, (head, *([] if numeric else cells))))
            lines = max((cell_len(part) for text in cells for part in text.split("\n")), default=0)
            least.append(max(words, lines) if numeric else words)
            wanted.append(max(least[-1], lines, *map(cell_len, head.split("\n"))))
        free = most - _ENDS - _BETWEEN * (len(least) - 1) - sum(least)
        if free < 0:
            return None
        for _ in range(free):
            column = max(range(len(least)), key=lambda at: wanted[at] - least[at])
            least[column] += least[column] < wanted[column]
        return least

    def _as_columns(self, widths: Sequence[int]) -> RichTable:
        rich = RichTable(title=Text(self._title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for head, numeric, width in zip(self._heads, self._numeric, widths, strict=True):
            justify = "right" if numeric else "left"
            rich.add_column(Text(head), justify=justify, width=width, overflow="fold")  # type: ignore[arg-type]
        for line in self._lines:
            rich.add_row(*map(Text, line))
        return rich

    def _as_list(self, line: Sequence[str]) -> RichTable:
        rich = RichTable(box=None, show_header=False, padding=(0, 2, 0, 1))
        rich.add_column(no_wrap=True)
        rich.add_column(overflow="fold")
        for head, text in zip(self._full, line, strict=True):
            rich.add_row(Text(head), Text(text))
        rich.add_row()
        return rich


def _longest_word(text: str) -> int:
    return min(_LONGEST_WORD, max(map(cell_len, text.split()), default=0))
