"""What is shown of a run while it lasts."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.cli import progress
from harness.cli.progress import Display, make_display
from harness.cli.terminal import Terminal
from harness.engines.base import EngineVariant
from harness.engines.variants import Variant
from harness.loadgen.load_plan import Progress
from harness.metrics.estimates import distribution
from harness.metrics.samples import Sample
from harness.runs.events import (
    CellDone,
    CellProgress,
    CellsExpected,
    EngineSkipped,
    EngineStarting,
    EngineWarming,
    Event,
    Reporting,
    Started,
    TooFewClients,
    WarmupProgress,
)
from harness.runs.schedule import Cell
from harness.schema.facts import Fact
from harness.schema.load import TraceLoad
from harness.schema.metrics import LATENCIES
from harness.schema.results import OnlineSummary, Skipped
from harness.schema.setting_types import EngineRef

ENGINE_VARIANT = EngineVariant(
    EngineRef(name="vllm", variant="x"), Variant(), "vLLM ([bold]x[/bold] :smile:)"
)
CELL = Cell(2, ENGINE_VARIANT, TraceLoad(scale=0.4), 1, 0, 0)
LOST = Skipped(
    engine="vllm",
    label="vLLM",
    load=TraceLoad(scale=0.4),
    repeat=1,
    reason="it died:\nlast words",
    hint="hint it",
)
EVENTS: list[Event] = [
    Started(Path("a/" * 150), 4, 1),
    EngineSkipped(Skipped(engine="vllm", label="vLLM", reason="not installed", hint="install it")),
    EngineStarting(ENGINE_VARIANT.label, Path("log")),
    EngineWarming(ENGINE_VARIANT.label, 1.25, 3),
    CellProgress(CELL, 10, Progress(0, 0, 0)),
    CellProgress(CELL, 10, Progress(5, 3, 1, 41_400)),
    EngineSkipped(LOST),
    Reporting(),
]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[bool], str]:
    """What the events print where there is no terminal."""

    def show(quiet: bool) -> str:
        with make_display(quiet) as display:
            for event in EVENTS:
                display.show(event)
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return show


def test_plain_lines_where_there_is_no_terminal(shown: Callable[[bool], str]) -> None:
    assert shown(False).splitlines() == [
        f"run {Path('a/' * 150)}: 4 cells, 1 already measured",
        "skipped vLLM: not installed",
        "  hint: install it",
        "vLLM ([bold]x[/bold] :smile:): ready after 1.2 s; 3 requests to warm up",
        "[3/4] vLLM ([bold]x[/bold] :smile:), scale 0.4, repeat 2: 10 requests",
        "skipped vLLM, scale 0.4, repeat 2: it died:",
        "last words",
        "  hint: hint it",
    ]


def test_the_number_of_cells_follows_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    with make_display(quiet=False) as display:
        display.show(Started(Path("run"), 2, about=True))
        display.show(CellsExpected(5))
        display.show(CellProgress(CELL, 10, Progress(0, 0, 0)))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "run run: about 2 cells" and second.startswith("[3/5] ")


def test_cells_side_by_side_begin_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [replace(CELL, index=index) for index in (0, 1)]
    label = ENGINE_VARIANT.label
    with make_display(quiet=False) as display:
        display.show(Started(Path("run"), 2))
        for side in cells:
            display.show(EngineStarting(label, Path("log")))
            display.show(EngineWarming(label, 1.25, 3 + side.index))
        for done in range(4):
            for side in cells:
                display.show(WarmupProgress(label, 3 + side.index, done))
        for done in range(9):
            for side in cells:
                display.show(CellProgress(side, 10, Progress(done, done, 0)))
            if done == 4:
                display.show(TooFewClients(cells[0], 1, 4))
                display.show(TooFewClients(cells[1], 4, 5))
    place = f"{label}, scale 0.4, repeat 2"
    assert capsys.readouterr().err.splitlines() == [
        "run run: 2 cells",
        f"{label}: ready after 1.2 s; 3 requests to warm up",
        f"{label}: ready after 1.2 s; 4 requests to warm up",
        f"[1/2] {place}: 10 requests",
        f"[2/2] {place}: 10 requests",
        f"{place}: 1 client process is too few, measuring again with 4",
        f"{place}: 4 client processes are too few, measuring again with 5",
    ]


def test_quiet_shows_nothing(shown: Callable[[bool], str]) -> None:
    assert shown(True) == ""


def test_a_terminal_gets_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr("sys.stderr", text)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with make_display(quiet=False) as display:
        for event in EVENTS[:6]:
            display.show(event)
    assert "2 in flight, 1 failed, TTFT p50 41 ms" in text.getvalue()
    assert "3/10 requests" in text.getvalue() and "left" in text.getvalue()
    assert "-:-- left" not in text.getvalue()[-200:]
    with make_display(quiet=False) as display:
        for event in (*EVENTS[:6], Reporting()):
            display.show(event)
    last = text.getvalue()[-800:]
    assert "writing tables, figures and report" in last and "-:-- left" in last
    assert "[bold]x[/bold] :smile:" in text.getvalue()


def summary_of(n: int) -> OnlineSummary:
    """A cell of `n` requests."""
    sample = Sample(np.arange(1.0, n + 1), None, np.arange(n))
    found = distribution(sample)
    metrics = dict.fromkeys(LATENCIES, found)
    return OnlineSummary(
        engine="vllm", label="vLLM", load=TraceLoad(scale=0.4), repeat=1,
        num_requests=n, num_success=n, num_error=0, duration_s=1,
        offered_req_per_s=n, req_per_s=n, output_tok_per_s=n, total_tok_per_s=n,
        prompt_tokens=n, completion_tokens=n, chunks=n,
        notices=[
            Fact(kind="behind", values={"offered": 9, "answered": 4}),
            Fact(kind="unreported"),
        ],
        **metrics,
    )  # fmt: skip


@pytest.mark.parametrize(("n", "words"), [
    (1, "TTFT – ms"), (5, "TTFT p50 3.0 ms"),
    (30, "TTFT p50 15.5 p90 27.1 ms"), (100, "TTFT p50 50.5 p99 99.0 ms"),
])  # fmt: skip
def test_percentiles_that_a_cell_is_too_small_for_are_not_shown(
    n: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_display(quiet=False) as display:
        display.show(CellDone(CELL, summary_of(n)))
    said = capsys.readouterr().err
    assert words in said and said.count("NOTICE: ") == 1


def test_a_window_without_requests_is_not_called_failed(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = summary_of(1).model_copy(
        update={
            "num_requests": 0,
            "num_success": 0,
            "valid": False,
            "invalid_reasons": [Fact(kind="unmeasured")],
        }
    )
    with make_display(quiet=False) as display:
        display.show(CellDone(CELL, nothing))
    said = capsys.readouterr().err
    assert "INVALID: " in said and "failed" not in said


def test_time_left_in_the_first_cell_leaves_out_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: clock[0])
    display = Display(Terminal(file=io.StringIO(), force_terminal=True))

    def shown(at: float, event: Event) -> str:
        clock[0] = at
        display.show(event)
        display.__rich__()
        return display._bar.tasks[0].fields["times"]  # type: ignore[no-any-return]

    display.show(Started(Path("run"), 4, 0))
    assert shown(10, EngineStarting(ENGINE_VARIANT.label, Path("log"))) == "0:10 elapsed, -:-- left"
    assert shown(40, CellProgress(CELL, 10, Progress(1, 0, 0))) == "0:40 elapsed, -:-- left"
    assert (
        shown(42, CellProgress(CELL, 10, Progress(3, 2, 0))) == "0:42 elapsed, 0:38 left"
    )  # 4 cells of 10 s
    assert shown(50, CellDone(CELL, summary_of(30))) == "0:50 elapsed, 2:30 left"
    assert shown(55, CellProgress(CELL, 10, Progress(9, 5, 0))) == "0:55 elapsed, 1:32 left"
    for _ in range(2):
        assert shown(60, CellDone(CELL, summary_of(30))) != "1:00 elapsed, -:-- left"
    assert shown(60, CellDone(CELL, summary_of(30))) == "1:00 elapsed, -:-- left"  # what follows is no cell
