"""A table as plain data, which a terminal, Markdown and HTML render alike, and the fields it is built of.

A table of one row an item is a list of fields, each a head with the cells below it:

    fields: list[Field[HostCell]] = [
        text("node", lambda host: host.name),
        count("requests", lambda host: host.requests),
        number("round trip ms", lambda host: host.clock.round_trip_ms, 2),
    ]
    build("nodes", "Nodes that sent", fields, hosts)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from harness.metrics.digits import per_cent
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, decimals
from harness.report.text.numbers import number as number_text
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


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it shows.
        value: What it sorts by, and the number of a copy as CSV.
        interval: Its 95 % interval as text, and `ends` as numbers.
        remark: What a reader sees who points at it.
        best, invalid, inferred: The marks that it has.
    """

    text: str
    value: float | None = None
    interval: str = ""
    remark: str = ""
    best: bool = False
    invalid: bool = False
    inferred: bool = False
    significant: bool = False
    ends: Ends | None = None

    @property
    def marks(self) -> list[str]:
        """Names of its marks, in the order of MARKS."""
        return [name for name in MARKS if getattr(self, name)]

    @property
    def line(self) -> str:
        """The cell where there is only text: number, interval, marks."""
        marks = "".join(MARKS[name][0] for name in self.marks)
        return " ".join(filter(None, (self.text, f"({self.interval})" if self.interval else "", marks)))


@dataclass(frozen=True)
class Column:
    """The head of a column.

    Attributes:
        title: Its own head.
        group: The head that it shares with its neighbours.
        numeric: Its cells are aligned to the right.
        measure: The quantity and unit of its numbers where the heads do not say them: `TTFT, ms`.
        kept: It stays in view on a narrow screen.
    """

    title: str
    group: str = ""
    numeric: bool = True
    measure: str = ""
    kept: bool = False

    @property
    def full(self) -> str:
        """The head where the column stands alone."""
        return " ".join(filter(None, (self.measure, self.group, self.title)))


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns.

    Attributes:
        name: A short identifier.
        notes: Sentences below the table.
        best: What the mark of the best means here.
        intervals: What the intervals are of.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    best: str = BEST
    intervals: str = INTERVALS

    @property
    def headers(self) -> list[str]:
        """One line of heads: the shared head before each column's own."""
        return [f"{column.group} {column.title}".strip() for column in self.columns]

    @property
    def legend(self) -> list[str]:
        """The meaning of each mark that some cell has, and how intervals are written."""
        used = {mark for row in self.rows for cell in row for mark in cell.marks}
        lines = [
            f"{sign} {self.best if name == 'best' else meaning}"
            for name, (sign, meaning) in MARKS.items()
            if name in used
        ]
        lines += [f"In brackets: {self.intervals}."] if self.has_intervals else []
        return [*lines, *([_WHY_WIDE] if self.has_too_wide else [])]

    @property
    def small_print(self) -> str:
        """The meaning of the small print in the cells; empty where there is none."""
        if not self.has_intervals:
            return ""
        return f"Small print: {self.intervals}{f'; {TOO_WIDE}: {_APART}' if self.has_too_wide else ''}."

    @property
    def has_too_wide(self) -> bool:
        """A cell has an interval that is too wide to be written."""
        return any(cell.interval == TOO_WIDE for row in self.rows for cell in row)

    @property
    def marked(self) -> bool:
        """A cell is marked as the best."""
        return any(cell.best for row in self.rows for cell in row)

    @property
    def has_intervals(self) -> bool:
        """A cell has an interval, be it too wide to be written."""
        return any(cell.interval for row in self.rows for cell in row)

    @property
    def lines(self) -> list[list[str]]:
        """The rows as text, with intervals and marks."""
        return [[cell.line for cell in row] for row in self.rows]


# --- Fields ---------------------------------------------------------------------------------------------

Item = TypeVar("Item", contravariant=True)


class Measured(Protocol):
    """Something measured of an engine at a load."""

    @property
    def label(self) -> str: ...
    @property
    def load(self) -> Load: ...


class Repeated(Measured, Protocol):
    """Something measured in one repeat, which is None for all together."""

    @property
    def repeat(self) -> int | None: ...


@dataclass(frozen=True)
class Field(Generic[Item]):
    """A column: its head, and its cells for all items of the table."""

    column: Column
    cells: Callable[[Sequence[Item]], list[Cell]]


def build(
    name: str, title: str, fields: Sequence[Field[Item]], items: Sequence[Item], notes: Sequence[str] = ()
) -> Table:
    """Build a table of one row an item."""
    columns = [field.cells(items) for field in fields]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Table(name, title, [field.column for field in fields], rows, notes)


def field(head: str, cell: Callable[[Item], Cell], *, numeric: bool = True) -> Field[Item]:
    """A column of cells that are made one by one."""
    return Field(Column(head, numeric=numeric), lambda items: [cell(item) for item in items])


def text(head: str, value: Callable[[Item], str]) -> Field[Item]:
    """A column of words."""
    return field(head, lambda item: Cell(value(item)), numeric=False)


def count(head: str, value: Callable[[Item], int | None]) -> Field[Item]:
    """A column of whole numbers."""
    return field(head, lambda item: number_cell(value(item), 0))


def share(head: str, value: Callable[[Item], float | None], places: int = 1) -> Field[Item]:
    """A column of shares, 0 to 1, shown in per cent."""
    return field(head, lambda item: share_cell(value(item), places))


def number(
    head: str,
    value: Callable[[Item], float | None],
    places: int | None = None,
    *,
    ends: Callable[[Item], Ends | None] = lambda item: None,
    unknown: str = DASH,
) -> Field[Item]:
    """A column of numbers with the same decimals.

    Args:
        places: Decimals; None: as many as show three digits of a middling value.
        ends: The 95 % interval of an item's number.
        unknown: The text of an item that has no number.
    """

    def cells(items: Sequence[Item]) -> list[Cell]:
        values = [value(item) for item in items]
        shown = decimals(values) if places is None else places
        return [
            Cell(unknown) if found is None else interval_cell(found, ends(item), shown)
            for found, item in zip(values, items, strict=True)
        ]

    return Field(Column(head), cells)


def engine() -> Field[Measured]:
    """The column of the engines' labels."""
    return text("engine", lambda item: item.label)


def load(items: Iterable[Measured]) -> Field[Measured]:
    """The column of the loads of `items`, which are of one kind."""
    return field(head_of(item.load for item in items), lambda item: load_cell(item.load))


def repeat() -> Field[Repeated]:
    """The column of the repeats' numbers."""
    return field("repeat", lambda item: repeat_cell(item.repeat))


# --- Cells ----------------------------------------------------------------------------------------------


def load_cell(of: Load) -> Cell:
    """The number of a load."""
    return Cell(load_number(of), of.value)


def repeat_cell(repeat: int | None) -> Cell:
    """The number of a repeat, from 1; it sorts by that in files, from 0."""
    return Cell(str((repeat or 0) + 1), repeat)


def number_cell(value: float | None, places: int) -> Cell:
    """A number with so many decimals; a dash for None."""
    return Cell(number_text(value, places), value)


def share_cell(value: float | None, places: int = 1) -> Cell:
    """A share, 0 to 1, in per cent; a dash for None."""
    return Cell(DASH) if value is None else Cell(per_cent(value, places), value)


def interval_cell(value: float, ends: Ends | None, places: int) -> Cell:
    """A number above its 95 % interval."""
    return Cell(number_text(value, places), value, interval_text(ends, places), ends=ends)


def interval_text(ends: Ends | None, places: int) -> str:
    """`1.2–3.4` of a value that is above 0; empty without an interval."""
    if ends is None:
        return ""
    low, high = ends
    if high > WIDEST * max(low, 0.0):
        return TOO_WIDE
    return f"{number_text(low, places)}–{number_text(high, places)}"


def says_nothing(ratio_ci: Ends) -> bool:
    """Tell whether the interval of a ratio leaves open which is larger, and by what order of magnitude."""
    low, high = ratio_ci
    return low < 1 < high and high > WIDEST * low


def metric_decimals(metric: str, values: Iterable[float | None]) -> int:
    """Decimals of a column of a metric: its own, else as many as the values need."""
    places = METRICS[metric].decimals
    return decimals(values) if places is None else places
