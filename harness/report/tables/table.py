"""A table as plain data, which a terminal, Markdown and HTML render alike.

A table is its columns, each a head with one cell for each row:

    columns = [
        Column.text("node", [host.name for host in hosts]),
        Column.count("requests", [host.requests for host in hosts]),
        Column.number("round trip ms", [host.clock.round_trip_ms for host in hosts], 2),
    ]
    Table("nodes", "Nodes that sent", columns)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from typing import Any, Protocol

from harness.metrics.digits import per_cent
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, decimals, number
from harness.schema.load import Load
from harness.schema.metrics import METRICS

#: An interval whose ends differ by more than this factor says nothing of a value.
WIDEST = 10
BEST = "Better than every valid engine without this mark, at 5 % for all comparisons of the run together."
INTERVALS = "95 % intervals"
#: The sign of each mark in plain text, and what it means.
MARKS = {
    "best": ("*", BEST),
    "invalid": ("†", "Invalid: shown, and not compared."),
    "significant": ("≠", "Differs from the best at 5 % for all comparisons of the run together."),
    "inferred": ("‡", "Inferred: the server does not say when each token came."),
}
TOO_WIDE = "too wide"
_APART = f"the ends of an interval are over {WIDEST} times apart"
_WHY_WIDE = f"Too wide: {_APART}. More repeats make it narrower."

Ends = tuple[float, float]


class Measured(Protocol):
    """An engine at a load."""

    @property
    def label(self) -> str: ...
    @property
    def load(self) -> Load: ...


class Repeated(Measured, Protocol):
    """An engine at a load in a repeat, from 0; None for all together."""

    @property
    def repeat(self) -> int | None: ...


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it shows.
        value: What it sorts by, and the number of a copy as CSV.
        interval: Its 95 % interval as text, and `ends` as numbers.
        against: Its ratio to a baseline, above its interval, which is then of that ratio.
        remark: What a reader sees who points at it.
        best, invalid, inferred: The marks that it has; `worse` is in `against` in words.
    """

    text: str
    value: float | None = None
    interval: str = ""
    against: str = ""
    remark: str = ""
    worse: bool = False
    best: bool = False
    invalid: bool = False
    inferred: bool = False
    significant: bool = False
    ends: Ends | None = None

    @classmethod
    def number(cls, value: float | None, places: int | None = None, ends: Ends | None = None) -> Cell:
        """Make the cell of a number above its 95 % interval; a dash for None and NaN.

        Args:
            places: Decimals; None: as many as show three digits.
        """
        if value is None or isnan(value):
            return cls(DASH)
        shown = decimals([value]) if places is None else places
        return cls(number(value, shown), value, interval_text(ends, shown), ends=ends)

    @classmethod
    def share(cls, value: float | None, places: int = 1) -> Cell:
        """Make the cell of a share, 0 to 1, in per cent; a dash for None and NaN."""
        return cls(DASH) if value is None or isnan(value) else cls(per_cent(value, places), value)

    @property
    def marks(self) -> list[str]:
        """Names of its marks, in the order of MARKS; what `against` says in words is none."""
        return [name for name in MARKS if getattr(self, name) and not (name == "best" and self.against)]

    @property
    def line(self) -> str:
        """The cell where there is only text: number, interval, marks."""
        marks = "".join(MARKS[name][0] for name in self.marks)
        small = ", ".join(filter(None, (self.against, self.interval)))
        return " ".join(filter(None, (self.text, f"({small})" if small else "", marks)))


@dataclass(frozen=True)
class Column:
    """A head with the cells below it.

    Attributes:
        title: Its own head.
        group: The head that it shares with its neighbours.
        numeric: Its cells are aligned to the right.
        measure: The quantity and unit of its numbers where the heads do not say them: `TTFT, ms`.
        kept: It stays in view on a narrow screen.
    """

    title: str
    cells: Sequence[Cell] = ()
    group: str = ""
    numeric: bool = True
    measure: str = ""
    kept: bool = False

    @classmethod
    def text(cls, title: str, texts: Iterable[str]) -> Column:
        """Make a column of words."""
        return cls(title, list(map(Cell, texts)), numeric=False)

    @classmethod
    def count(cls, title: str, counts: Iterable[int | None]) -> Column:
        """Make a column of whole numbers."""
        return cls.number(title, counts, 0)

    @classmethod
    def number(
        cls, title: str, values: Iterable[float | None], places: int | None = None, unknown: str = DASH
    ) -> Column:
        """Make a column of numbers with the same decimals.

        Args:
            places: Decimals; None: as many as show three digits of a middling value.
            unknown: The text of a value that is None or NaN.
        """
        numbers = [None if value is None or isnan(value) else value for value in values]
        shown = decimals(numbers) if places is None else places
        cells = [Cell(unknown) if value is None else Cell.number(value, shown) for value in numbers]
        return cls(title, cells)

    @classmethod
    def share(cls, title: str, values: Iterable[float | None], places: int = 1) -> Column:
        """Make a column of shares, 0 to 1, shown in per cent."""
        return cls(title, [Cell.share(value, places) for value in values])

    @classmethod
    def engine(cls, rows: Iterable[Measured]) -> Column:
        """Make the column of the engines' labels."""
        return cls.text("engine", (row.label for row in rows))

    @classmethod
    def load(cls, rows: Sequence[Measured]) -> Column:
        """Make the column of the loads, which are of one kind."""
        loads = [row.load for row in rows]
        return cls(head_of(loads), [Cell(load_number(load), load.value) for load in loads])

    @classmethod
    def place(cls, rows: Sequence[Measured]) -> list[Column]:
        """Make the columns of engine and load."""
        return [cls.engine(rows), cls.load(rows)]

    @classmethod
    def repeat(cls, repeats: Iterable[int | None]) -> Column:
        """Make the column of the repeats: shown from 1, and from 0 in files."""
        return cls("repeat", [Cell(str((repeat or 0) + 1), repeat) for repeat in repeats])

    def marked(self, mark: str, flags: Iterable[bool]) -> Column:
        """Return the column with a mark in the cells whose flag is set."""
        changes: list[dict[str, Any]] = [{mark: flag} for flag in flags]
        cells = zip(self.cells, changes, strict=True)
        return replace(self, cells=[replace(cell, **change) for cell, change in cells])

    @classmethod
    def cell(cls, rows: Sequence[Repeated]) -> list[Column]:
        """Make the columns of engine and load and, where there are several repeats, of the repeat."""
        columns = cls.place(rows)
        repeats = [row.repeat for row in rows]
        return columns if set(repeats) <= {None} else [*columns, cls.repeat(repeats)]

    @property
    def full(self) -> str:
        """The head where the column stands alone."""
        return " ".join(filter(None, (self.measure, self.group, self.title)))


@dataclass(frozen=True)
class Table:
    """Columns of as many cells as there are rows.

    Attributes:
        name: A short identifier.
        notes: Sentences below the table.
        best: What the mark of the best means here.
        intervals: What the intervals are of.
    """

    name: str
    title: str
    columns: Sequence[Column]
    notes: Sequence[str] = ()
    best: str = BEST
    intervals: str = INTERVALS

    @cached_property
    def rows(self) -> list[tuple[Cell, ...]]:
        """The cells, row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells of the table."""
        return [cell for column in self.columns for cell in column.cells]

    @property
    def headers(self) -> list[str]:
        """One line of heads: the shared head before each column's own."""
        return [f"{column.group} {column.title}".strip() for column in self.columns]

    @property
    def legend(self) -> list[str]:
        """The meaning of each mark that some cell has, and how intervals are written."""
        used = {mark for cell in self.cells for mark in cell.marks}
        lines = [
            f"{sign} {self.best if name == 'best' else meaning}"
            for name, (sign, meaning) in MARKS.items()
            if name in used
        ]
        lines += [f"In brackets: {self.intervals}."] if self.has_intervals and self.intervals else []
        return [*lines, *([_WHY_WIDE] if self.has_too_wide else [])]

    @property
    def small_print(self) -> str:
        """The meaning of the small print in the cells; empty where there is none."""
        if not (self.has_intervals and self.intervals):
            return _WHY_WIDE if self.has_too_wide else ""
        return f"Small print: {self.intervals}{f'; {TOO_WIDE}: {_APART}' if self.has_too_wide else ''}."

    @property
    def has_too_wide(self) -> bool:
        """A cell has an interval that is too wide to be written."""
        return any(cell.interval == TOO_WIDE for cell in self.cells)

    @property
    def marked(self) -> bool:
        """A cell is marked as the best."""
        return any(cell.best for cell in self.cells)

    @property
    def has_intervals(self) -> bool:
        """A cell has an interval, be it too wide to be written."""
        return any(cell.interval for cell in self.cells)

    @property
    def lines(self) -> list[list[str]]:
        """The rows as text, with intervals and marks."""
        return [[cell.line for cell in row] for row in self.rows]


def transposed(table: Table) -> Table:
    """Return the table with a row for each of its columns, as a narrow terminal shows it."""
    heads, *columns = table.columns
    names = Column.text("", [column.full for column in columns])
    rows = zip(*(column.cells for column in columns), strict=True)
    turned = [Column(head.line, cells) for head, cells in zip(heads.cells, rows, strict=True)]
    return replace(table, columns=[names, *turned])


def stacked(parts: Iterable[Sequence[Column]]) -> list[Column]:
    """Join tables of the same heads, one below the other."""
    return [
        replace(columns[0], cells=[cell for column in columns for cell in column.cells])
        for columns in zip(*parts, strict=True)
    ]


def alike_in_rows(heads: Sequence[str], rows: Iterable[Sequence[float]]) -> list[Column]:
    """Make a column for each head of numbers given row by row; those of a row have the same decimals."""
    cells = [[Cell.number(value, decimals(values)) for value in values] for values in rows]
    return [Column(head, [row[at] for row in cells]) for at, head in enumerate(heads)]


def interval_text(ends: Ends | None, places: int) -> str:
    """Return `1.2–3.4` of a value that is above 0; empty without an interval."""
    if ends is None:
        return ""
    low, high = ends
    if high > WIDEST * max(low, 0.0):
        return TOO_WIDE
    return f"{number(low, places)}–{number(high, places)}"


def says_nothing(ratio_ci: Ends) -> bool:
    """Tell whether the interval of a ratio leaves open which is larger, and by what order of magnitude."""
    low, high = ratio_ci
    return low < 1 < high and high > WIDEST * low


def metric_decimals(metric: str, values: Iterable[float | None]) -> int:
    """Return the decimals of a column of a metric: its own, else as many as the values need."""
    places = METRICS[metric].decimals
    return decimals(values) if places is None else places
