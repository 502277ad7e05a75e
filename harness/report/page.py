"""Templates, and what they may call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.plain_text import visible
from harness.report.tables.table import Column

_TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    """Text is escaped, hidden characters are written out, and an unknown name is an error."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    made.filters["runs"] = _runs
    return made


def _visible(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def text_of(name: str) -> Markup:
    """A file of the templates' folder as it is."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


def _runs(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    """Neighbouring columns that share a group."""
    return [(group, list(members)) for group, members in groupby(columns, key=lambda column: column.group)]
