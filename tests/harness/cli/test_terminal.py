"""What a command prints cannot steer the terminal, and everything is printed that way."""

from __future__ import annotations

import ast
import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

import harness
from harness.cli.terminal import PIPE_WIDTH, Terminal, echo
from harness.cli.terminal_table import TerminalTable
from harness.plain_text import one_line, visible
from harness.report.page import environment
from harness.report.render import markdown
from harness.report.results_csv import csv_text
from harness.report.tables.table import Cell, Column
from harness.report.tables.table import Table as ReportTable

ANY = st.text(st.characters())
#: rich's own codes: colours, and moves of the cursor by a live display.
OWN = re.compile("\x1b\\[[0-9;]*m|\x1b\\]8;[^\x1b]*\x1b\\\\")


def printed(what: object, *, color: bool = False) -> str:
    out = io.StringIO()
    Terminal(file=out, width=100, force_terminal=color).print(what)
    return OWN.sub("", out.getvalue())


def report_table(text: str) -> ReportTable:
    return ReportTable(
        "t", text, [Column(text, [Cell(text)]), Column(text, [Cell(text, remark=text)], text)], [text]
    )


@given(ANY, st.booleans())
def test_no_text_steers_the_terminal(text: str, color: bool) -> None:
    table = Table(text, title=text)
    table.add_row(text)
    for what in (text, table, TerminalTable(report_table(text))):
        shown = printed(what, color=color)
        assert visible(shown) == shown


def test_a_command_goes_on_where_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for say in (Terminal, lambda file: None):
        reads, writes = os.pipe()
        os.close(reads)
        with os.fdopen(writes, "w") as stream:
            monkeypatch.setattr("sys.stdout", stream)
            console = say(file=stream)
            for _ in range(2):
                echo("a line") if console is None else console.print("a line")


@given(ANY)
def test_no_text_hides_in_markdown_csv_and_pages(text: str) -> None:
    template = "{{ text }} <b title='{{ text }}'>{{ text | upper }}</b>"
    shown = environment().from_string(template).render(text=text)
    csv = csv_text(["head"], [(text, 1.5)])
    for made in (shown, csv, markdown(report_table(text)), one_line(text)):
        assert visible(made) == made
        made.encode()
    assert csv.count("\n") == 2


WORDS = st.text("abcé…", min_size=1, max_size=14)


@given(st.lists(st.tuples(WORDS, WORDS, WORDS, st.booleans()), min_size=1, max_size=9), st.integers(40, 120))
def test_no_word_of_a_table_is_cut(columns: list[tuple[str, str, str, bool]], width: int) -> None:
    shown_columns = [
        Column(f"{head} {more}", [Cell(cell if numeric else f"{cell} {head}")], numeric=numeric)
        for head, more, cell, numeric in columns
    ]
    out = io.StringIO()
    Terminal(file=out, width=width).print(TerminalTable(ReportTable("t", "A title", shown_columns)))
    shown = out.getvalue()
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    words = {word for column in shown_columns for word in column.title.split()}
    words |= {word for column in shown_columns for word in column.cells[0].text.split()}
    assert words <= set(shown.split())


def test_markup_is_text() -> None:
    assert printed("[red]x[/nothing] :smile:") == "[red]x[/nothing] :smile:\n"


def test_a_line_goes_to_stdout_in_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    echo(Path("a\x1b[2J\u202e\udcff"))
    assert capsys.readouterr() == ("a\\u001b[2J\\u202e\\udcff\n", "")


def test_a_pipe_is_as_wide_whatever_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert Terminal(file=io.StringIO()).width == PIPE_WIDTH
    assert Terminal(file=io.StringIO(), force_terminal=True).width == 40
    assert Terminal(file=io.StringIO(), width=50).width == 50


def test_commands_print_through_it_alone() -> None:
    """`app` prints before anything may be imported, through `visible`."""
    found = []
    for path in sorted((Path(harness.__file__).parent / "cli").glob("*.py")):
        if path.name in ("terminal.py", "app.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = ast.unparse(node.func)
                if re.fullmatch(r"print|Console|typer\.(echo|secho)|sys\.(stdout|stderr)\.write", name):
                    found.append(f"{path.name}:{node.lineno} {name}")
    assert found == []
