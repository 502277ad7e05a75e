"""A table as plain data: a terminal, Markdown and HTML render the same cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.report.text.numbers import decimals, number
from harness.schema.metrics import METRICS


@dataclass(frozen=True)
class Cell:
    """What a cell shows, what it sorts by, its 95 % interval, and a remark that explains it."""

    text: str
    value: float | None = None
    interval: str = ""
    remark: str = ""
    best: bool = False
    invalid: bool = False


@dataclass(frozen=True)
class Column:
    """A column's head, and the head that it shares with its neighbours."""

    title: str
    group: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns. `name` is a short identifier."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default=())

    @property
    def headers(self) -> list[str]:
        """One line of heads: the shared head before each column's own."""
        return [f"{column.group} {column.title}".strip() for column in self.columns]

    @property
    def marked(self) -> bool:
        """Whether something is the best."""
        return any(cell.best for row in self.rows for cell in row)

    @property
    def lines(self) -> list[list[str]]:
        """The rows as text; the best is starred."""
        return [[f"{cell.text} *" if cell.best else cell.text for cell in row] for row in self.rows]


def number_cell(value: float | None, places: int) -> Cell:
    """A number with so many decimals; a dash for None."""
    return Cell(number(value, places), value)


def metric_decimals(metric: str, values: Iterable[float | None]) -> int:
    """Decimals of a column of a metric: its own, else as many as the values need."""
    own = METRICS[metric].decimals
    return decimals(values) if own is None else own
