"""`summary.md`: the run as text that pastes into an issue."""

from __future__ import annotations

from harness.plain_text import one_line
from harness.report.answer import answer, terms
from harness.report.decision import decide
from harness.report.notices import notices
from harness.report.sections import PAGE_ONLY, sections
from harness.report.tables.table import Table
from harness.report.text.heading import facts, title
from harness.runs.reader import Run


def summary(run: Run) -> str:
    """Return what was compared, warnings, the verdict and the tables of a run."""
    parts = [f"# {_text(title(run))}\n"]
    lines = [f"- {_text(name)}: {_text(value)}" for name, value in facts(run).items()]
    parts.append("\n".join(lines) + "\n")
    parts += [f"> **{_text(notice.title)}** {_text(notice.detail, 4000)}\n" for notice in notices(run)]
    parts.append(_text(" ".join([*map(str, answer(run)), *terms(run)]), 2000) + "\n")
    if run.has_results:
        by_section = sections(run, None if run.is_batch else decide(run))
        parts += [table(each) for name in by_section if name not in PAGE_ONLY for each in by_section[name]]
    return "\n".join(parts)


def table(shown: Table) -> str:
    """Return a pipe table under a heading, with its notes and what its marks mean."""
    rule = ["---:" if column.numeric else "---" for column in shown.columns]
    heads, *lines = ([_text(text) for text in line] for line in (shown.headers, *shown.lines))
    body = "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *lines))
    notes = [f"{_text(note, 1000)}\n" for note in (*shown.legend, *shown.notes)]
    return "\n".join([f"## {_text(shown.title)}\n", body, "", *notes])


def _text(text: str, limit: int = 300) -> str:
    """Text from outside that cannot end a cell, start markup or open a tag."""
    line = one_line(text, limit).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|`*_[]":
        line = line.replace(mark, f"\\{mark}")
    return line
