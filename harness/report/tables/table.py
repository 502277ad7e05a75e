"""A table as plain data: a terminal, Markdown and HTML render the same cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.report.best import WIDEST
from harness.report.text.numbers import decimals, number
from harness.schema.metrics import METRICS

BEST = "Better than every valid engine without this mark, at 5 % for all comparisons of the run together."
INTERVALS = "95 % intervals"
#: How plain text marks a cell, and what the mark means.
MARKS = {
    "best": ("*", BEST),
    "invalid": ("†", "Invalid: shown, and not compared."),
    "inferred": ("‡", "Inferred: the server does not say when each token came."),
}
TOO_WIDE = "too wide"
_APART = f"the ends of an interval are over {WIDEST} times apart"
_WHY_WIDE = f"Too wide: {_APART}. More repeats make it narrower."


@dataclass(frozen=True)
class Cell:
    """What a cell shows, what it sorts by, its 95 % interval as text and as numbers, and a remark on it."""

    text: str
    value: float | None = None
    interval: str = ""
    remark: str = ""
    best: bool = False
    invalid: bool = False
    inferred: bool = False
    ends: tuple[float, float] | None = None

    @property
    def marks(self) -> list[str]:
        """Which of MARKS it has."""
        return [name for name in MARKS if getattr(self, name)]

    @property
    def line(self) -> str:
        """The cell where there is only text: number, interval, marks."""
        marks = "".join(MARKS[name][0] for name in self.marks)
        return " ".join(filter(None, (self.text, f"({self.interval})" if self.interval else "", marks)))


@dataclass(frozen=True)
class Column:
    """A column's head, the head that it shares with its neighbours, and what its numbers are: `TTFT, ms`.

    One that is `kept` stays in view on a narrow screen.
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
    """Rows of cells under columns. `name` is a short identifier, `best` says what is marked as best, and
    `intervals` what the intervals are."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default=())
    best: str = BEST
    intervals: str = INTERVALS

    @property
    def headers(self) -> list[str]:
        """One line of heads: the shared head before each column's own."""
        return [f"{column.group} {column.title}".strip() for column in self.columns]

    @property
    def legend(self) -> list[str]:
        """What the marks mean that some cell has, and how intervals are written."""
        cells = [cell for row in self.rows for cell in row]
        used = {mark for cell in cells for mark in cell.marks}
        lines = [
            f"{mark} {self.best if name == 'best' else text}"
            for name, (mark, text) in MARKS.items()
            if name in used
        ]
        lines += [f"In brackets: {self.intervals}."] if self.has_intervals else []
        return [*lines, *([_WHY_WIDE] if self.has_too_wide else [])]

    @property
    def small_print(self) -> str:
        """What is in small print in the cells; empty where nothing is."""
        if not self.has_intervals:
            return ""
        return f"Small print: {self.intervals}{f'; {TOO_WIDE}: {_APART}' if self.has_too_wide else ''}."

    @property
    def has_too_wide(self) -> bool:
        return any(cell.interval == TOO_WIDE for row in self.rows for cell in row)

    @property
    def marked(self) -> bool:
        """Whether something is the best."""
        return any(cell.best for row in self.rows for cell in row)

    @property
    def has_intervals(self) -> bool:
        """Whether a cell has one, be it too wide to be written."""
        return any(cell.interval for row in self.rows for cell in row)

    @property
    def lines(self) -> list[list[str]]:
        """The rows as text, with intervals and marks."""
        return [[cell.line for cell in row] for row in self.rows]


def repeat_cell(repeat: int | None) -> Cell:
    """The number of a repeat, from 1; it sorts by that in files, from 0."""
    return Cell(str((repeat or 0) + 1), repeat)


def number_cell(value: float | None, places: int) -> Cell:
    """A number with so many decimals; a dash for None."""
    return Cell(number(value, places), value)


def interval_text(ends: tuple[float, float] | None, places: int) -> str:
    """`1.2–3.4` of a value that is above 0; empty without an interval."""
    if ends is None:
        return ""
    low, high = ends
    return TOO_WIDE if high > WIDEST * max(low, 0.0) else f"{number(low, places)}–{number(high, places)}"


def metric_decimals(metric: str, values: Iterable[float | None]) -> int:
    """Decimals of a column of a metric: its own, else as many as the values need."""
    own = METRICS[metric].decimals
    return decimals(values) if own is None else own
