"""A report's table for a terminal: no word is cut, whatever the width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from harness.plain_text import visible
from harness.report.tables.table import Column, Table

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
                yield self._as_list(line, options.max_width // 2)

    def _widths(self, most: int) -> list[int] | None:
        """Return column widths that add up to at most `most` characters; None if a word does not fit.

        Numbers are wrapped only where they have to be. The rest goes where it saves most lines.
        """
        words, cells, whole = [], [], []
        for head, *texts in zip(self._heads, *self._lines, strict=True):
            words.append(max(map(_longest_word, (head, *texts))))
            cells.append(max(words[-1], *map(_longest_line, texts), 0))
            whole.append(max(cells[-1], _longest_line(head)))
        room = most - _ENDS - _BETWEEN * (len(words) - 1)
        numbers = [
            wide if numeric else least
            for wide, least, numeric in zip(cells, words, self._numeric, strict=True)
        ]
        widths = numbers if sum(numbers) <= room else words
        for wide_enough in (cells, whole):
            for _ in range(room - sum(widths)):
                tallest = max(range(len(widths)), key=lambda at: wide_enough[at] / max(widths[at], 1))
                widths[tallest] += wide_enough[tallest] > widths[tallest]
        return widths if sum(widths) <= room else None

    def _as_columns(self, widths: Sequence[int]) -> RichTable:
        rich = RichTable(
            title=Text(self._title),
            title_justify="left",
            box=SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0),
        )
        for head, numeric, width in zip(self._heads, self._numeric, widths, strict=True):
            justify = "right" if numeric else "left"
            rich.add_column(Text(head), justify=justify, width=width, overflow="fold")  # type: ignore[arg-type]
        for line in self._lines:
            rich.add_row(*map(Text, line))
        return rich

    def _as_list(self, line: Sequence[str], half: int) -> RichTable:
        rich = RichTable(box=None, show_header=False, padding=(0, 2, 0, 1))
        rich.add_column(overflow="fold")
        rich.add_column(overflow="fold", min_width=min(half, max(map(_longest_word, line), default=0)))
        for head, text in zip(self._full, line, strict=True):
            rich.add_row(Text(head), Text(text))
        rich.add_row()
        return rich


def listing(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> TerminalTable:
    """A table of texts."""
    lines = list(rows)
    columns = [Column.text(head, [line[at] for line in lines]) for at, head in enumerate(heads)]
    return TerminalTable(Table(title, title, columns))


def _longest_line(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _longest_word(text: str) -> int:
    return min(_LONGEST_WORD, max(map(cell_len, text.split()), default=0))
