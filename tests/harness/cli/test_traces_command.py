"""`bench traces` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import traces
from harness.cli.terminal import Terminal
from harness.cli.traces import app, fetch_
from harness.errors import UsageError
from harness.traces import catalog

runner = CliRunner()
ENTRIES = catalog.entries().values()


def run(*arguments: str) -> str:
    result = runner.invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_every_trace() -> None:
    listed = json.loads(run("list", "--json"))
    assert [row["name"] for row in listed] == ["builtin", *catalog.entries()]
    assert all(row["licence"] and row["origin"] for row in listed)
    assert "mooncake-conversation" in run("list")


def test_a_pipe_shows_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(traces, "console", Terminal())
    listed = run("list").splitlines()
    assert all(any({entry.name, entry.licence} <= {*line.split()} for line in listed) for entry in ENTRIES)
    assert all(any(entry.note in line for line in listed) for entry in ENTRIES if entry.note)
    assert catalog.load("builtin").sha256 in run("info").split()


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_whole_names(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "console", Terminal(width=width))
    assert {entry.name for entry in ENTRIES} <= {*run("list").split()}
    assert "…" not in run("list") + run("info")


def test_info_of_the_builtin_trace() -> None:
    found = json.loads(run("info", "--json"))
    assert (found["name"], found["requests"]) == ("builtin", 1_000)
    assert found["input"]["p50"] > 0 and "generated" in found["origin"]
    shown = run("info")
    assert "generated" in shown and "gap CV" in shown and "p99" in shown


def test_convert_writes_what_info_reads(tmp_path: Path) -> None:
    out = tmp_path / "deeper" / "trace.csv"
    assert "25 requests of builtin" in run("convert", "builtin", str(out), "--n", "25")
    found = json.loads(run("info", str(out), "--json"))
    assert (found["name"], found["requests"]) == ("trace", 25)
    assert "generated" in found["origin"] and "Splitwise" in found["citation"]


def test_a_mistake_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no trace or file"):
        run("info", "nothing-of-that-name")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UsageError, match="is a folder, which is never replaced"):
        run("convert", "builtin", str(tmp_path / "folder.csv"))
    (tmp_path / "folder.csv" / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        run("convert", "builtin", str(tmp_path / "folder.csv" / "file" / "trace.csv"))
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]
    (tmp_path / "own.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    with pytest.raises(UsageError, match="is the trace itself"):
        run("convert", str(tmp_path / "own.csv"), str(tmp_path / "folder.csv" / ".." / "own.csv"))
    with pytest.raises(UsageError, match="needs no download"):
        run("fetch", "builtin")


def test_a_wrong_name_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no trace or file"):
        fetch_(["nothing-of-that-name"])
    assert capsys.readouterr().out == ""
