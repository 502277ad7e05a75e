"""The end of a run: verdict, one table and warnings, however narrow the terminal is, and the exit code."""

from __future__ import annotations

import io
import re
import webbrowser
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from harness.cli.measure import MOST_WARNINGS, conclude, print_ending
from harness.cli.progress import Display
from harness.cli.terminal import Terminal
from harness.metrics.rankings import shown_load
from harness.report.answer import answer
from harness.report.notices import notices
from harness.report.tables.table import Column, Table
from harness.report.wording import Notice, notices_of
from harness.runs.reader import Run, load_run
from harness.schema.facts import Fact
from harness.schema.results import OnlineResults, OnlineSummary
from harness.schema.search import SearchPlan, SearchResults
from tests.harness.report.conftest import make_online


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    found = load_run(make_online(tmp_path_factory.mktemp("ending") / "run", n=110), trust=True)
    assert isinstance(found, Run)
    return found


def printed(run: Run, columns: int, *, terminal: bool = True) -> list[str]:
    text = io.StringIO()
    console = Terminal(file=text, width=columns, force_terminal=terminal, color_system=None, soft_wrap=True)
    print_ending(run, Display(console))
    return text.getvalue().splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_nothing_is_cut(run: Run, columns: int) -> None:
    lines = printed(run, columns)
    assert max(len(line.rstrip()) for line in lines) <= columns
    words = " ".join(" ".join(lines).split())
    assert "…" not in words
    grave = [notice for notice in notices(run) if notice.severity != "note"][:MOST_WARNINGS]
    for sentence in [*map(str, answer(run)), *(f"warning: {notice.title}" for notice in grave)]:
        assert " ".join(sentence.split()) in words


def test_a_long_note_of_a_table_is_wrapped() -> None:
    text, note = io.StringIO(), "The words of a note. " * 9
    console = Terminal(file=text, width=80, force_terminal=True, color_system=None, soft_wrap=True)
    Display(console).print_tables([Table("t", "t", [Column.text("engine", ["a"])], [note])])
    lines = text.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert " ".join(" ".join(lines).split()).endswith(note.strip())


def test_the_ranking_is_printed_with_invalid_cells_marked(run: Run) -> None:
    lines = printed(run, 200)
    head = next(line.split() for line in lines if line.lstrip().startswith("engine "))
    invalid = [summary for summary in run.pooled if not summary.valid]
    marked = [line for line in lines if line.split()[:1] == ["vLLM"] and "†" in line]
    assert head == ["engine", "scale", "latency", "TTFT", "TPOT"]
    assert [summary.label for summary in invalid] == ["vLLM"] * len(marked) and len(marked) == 1


def test_piped_output_has_a_line_a_sentence(run: Run) -> None:
    lines = printed(run, 80, terminal=False)
    assert {str(sentence) for sentence in answer(run)} <= set(lines)


def test_many_warnings_are_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    grave = [
        Fact.of("code_changed", "A", folders="f"),
        Fact.of("cached", "A", share=0.5),
        Fact.of("uncommitted", commit="c"),
        Fact.of("unlisted_model", "A", model="m", listed="n"),
    ]
    many = [*grave, Fact.of("uncalibrated"), Fact.of("few_repeats", "A", repeats=1, enough=5)]
    monkeypatch.setattr("harness.cli.measure.facts_of", lambda run: many)
    monkeypatch.setattr("harness.cli.measure.notices", lambda run: notices_of(many))
    lines = printed(run, 400)
    assert sum(line.startswith("warning: ") for line in lines) == MOST_WARNINGS
    assert lines[-1] == "3 notes in the report"


def test_what_decides_nothing_is_a_note(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that the load does not reach; answers of an engine that is alone."""
    limit = Fact.of("unequal_setting", setting="cache", reported="A 1, B 2", ample=True)
    unchecked = Fact.of("answers_unchecked")
    monkeypatch.setattr("harness.cli.measure.facts_of", lambda run: [limit, unchecked])
    [warning] = [line for line in printed(run, 400) if line.startswith("warning: ")]
    assert "answers" in warning and len(run.engines) > 1
    alone = [cell for cell in run.results.summaries if cell.label == run.engines[0][1]]
    alone_run = replace(run, results=run.results.model_copy(update={"summaries": alone}))
    assert not any(line.startswith("warning: ") for line in printed(alone_run, 400))


def test_goodput_is_said_where_limits_were_given(run: Run) -> None:
    slo = run.meta.settings.slo
    assert slo is not None
    [line] = [line for line in printed(run, 400, terminal=False) if line.startswith("Goodput ")]
    assert "(TTFT ≤ 200 ms, TPOT ≤ 12 ms): " in line
    load = shown_load(run.pooled)
    for cell in (cell for cell in run.pooled if cell.load == load):
        assert cell.goodput_req_per_s is not None and cell.slo_met is not None
        said = re.search(rf"{re.escape(cell.label)} ([\d.]+) requests/s \((.*?) of all\)", line)
        assert said is not None and float(said[1]) == pytest.approx(cell.goodput_req_per_s, rel=0.01)
    meta = run.meta.model_copy(update={"settings": run.meta.settings.model_copy(update={"slo": None})})
    without = replace(run, results=run.results.model_copy(update={"meta": meta}))
    assert not any(line.startswith("Goodput") for line in printed(without, 400, terminal=False))


def test_a_long_warning_ends_after_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    same = " ".join(f"At scale {scale}, other processes kept 1 of 2 cores busy." for scale in range(9))
    found = Notice("drift", "Values changed.", same)
    monkeypatch.setattr("harness.cli.measure.notices_of", lambda facts: [found])
    [line] = [line for line in printed(run, 800) if line.startswith("warning: ")]
    assert line.startswith("warning: Values changed. At scale 0, ") and line.endswith("busy. …")
    assert len(line) < 300


def ended(cells: list[tuple[bool, int]], *, search: bool = False) -> OnlineResults:
    """Results with these pairs of valid and number of errors, one a cell."""
    plan = SearchPlan.make("concurrency", "ttft_p99<=1s")
    counts: list[dict[str, Any]] = [{"valid": valid, "num_error": failed} for valid, failed in cells]
    fields: dict[str, Any] = {"skipped": [], "meta": SimpleNamespace(unasked=[])}
    fields["summaries"] = [OnlineSummary.model_construct(**cell) for cell in counts]
    fields["search"] = SearchResults(plan=plan, engines=[]) if search else None
    return OnlineResults.model_construct(**fields)


def results_of(results: OnlineResults) -> Run:
    """A run with these results."""
    return cast(Run, SimpleNamespace(results=results))


@pytest.mark.parametrize(
    ("cells", "search", "code"),
    [
        ([(True, 0), (True, 0)], False, 0),
        ([(True, 0), (False, 0)], False, 0),  # one engine sent late, the other is measured
        ([(False, 0), (False, 0)], False, 3),  # nothing is valid, though no request failed
        ([(True, 0), (False, 1)], False, 3),
        ([(True, 0), (False, 1)], True, 0),  # a load was too heavy
        ([(False, 1), (False, 1)], True, 3),
    ],
)
def test_a_run_without_a_valid_cell_fails(cells, search, code, capsys):
    results = ended(cells, search=search)
    with pytest.raises(typer.Exit) if code else nullcontext() as end:
        conclude(results_of(results), Path("report.html"), None, as_json=False, open_report=False)
    assert (end.value.exit_code if code else 0) == code
    assert capsys.readouterr().out == "report.html\n"


def test_the_answer_is_in_the_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(typer.Exit):
        conclude(run, Path("report.html"), None, as_json=True, open_report=False)
    found = OnlineResults.model_validate_json(capsys.readouterr().out)
    assert found.answer == [*map(str, answer(run))] != []
    assert found.model_copy(update={"answer": []}) == run.results


def test_the_report_opens_in_a_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    for open_report in (False, True):
        conclude(
            results_of(ended([(True, 0)])),
            tmp_path / "a b.html",
            None,
            as_json=False,
            open_report=open_report,
        )
    assert opened == [f"{tmp_path.as_uri()}/a%20b.html"]
