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
    Calibrating,
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

LABEL = "vLLM ([bold]x[/bold] :smile:)"
ENGINE_VARIANT = EngineVariant(EngineRef(name="vllm", variant="x"), Variant(), LABEL)
CELL = Cell(2, ENGINE_VARIANT, TraceLoad(scale=0.4), 1, 0, 0)
LOST = Skipped(
    engine="vllm", label="vLLM", load=CELL.load, repeat=1, reason="it died:\nlast words", hint="hint it"
)
EVENTS: list[Event] = [
    Started(Path("a/" * 150), 4, 1),
    EngineSkipped(Skipped(engine="vllm", label="vLLM", reason="not installed", hint="install it")),
    EngineStarting(LABEL, Path("log")),
    EngineWarming(LABEL, 1.25, 3),
    CellProgress(CELL, 10, Progress(0, 0, 0)),
    CellProgress(CELL, 10, Progress(5, 3, 1, 41_400)),
    EngineSkipped(LOST),
    Reporting(),
]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Return the lines that events print where there is no terminal."""

    def lines(*events: Event, quiet: bool = False) -> list[str]:
        with make_display(quiet) as display:
            for event in events:
                display.show(event)
        out, err = capsys.readouterr()
        assert out == ""
        return err.splitlines()

    return lines


def test_plain_lines_where_there_is_no_terminal(show: Callable[..., list[str]]) -> None:
    assert show(*EVENTS, quiet=True) == []
    assert show(*EVENTS) == [
        f"run {Path('a/' * 150)}: 4 cells, 1 already measured",
        "skipped vLLM: not installed",
        "  hint: install it",
        f"{LABEL}: ready after 1.2 s; 3 requests to warm up",
        "skipped vLLM, scale 0.4, repeat 2: it died:",
        "last words",
        "  hint: hint it",
    ]


def test_the_number_of_cells_follows_what_is_known(show: Callable[..., list[str]]) -> None:
    done = CellDone(CELL, summary_of(30))
    first, second = show(Started(Path("run"), 2, about=True), CellsExpected(5), done)
    assert first == "run run: about 2 cells" and second.startswith("[3/5] ")


def test_an_engine_may_be_called_client(show: Callable[..., list[str]]) -> None:
    lines = show(Calibrating("its ceiling"), Calibrating("its errors"), EngineWarming("client", 1.25, 3))
    assert lines == [
        "calibrating the client, once for this machine",
        "client: ready after 1.2 s; 3 requests to warm up",
    ]


def test_starts_side_by_side_are_one_line(show: Callable[..., list[str]]) -> None:
    sides = [replace(CELL, index=index) for index in (0, 1)]

    def progress_of(*counts: int) -> list[Event]:
        return [CellProgress(side, 10, Progress(done, done, 0)) for done in counts for side in sides]

    events: list[Event] = [Started(Path("run"), 2)]
    for side in sides:
        events += [EngineStarting(LABEL, Path("log")), EngineWarming(LABEL, 1.25, 3 + side.index)]
    events += [WarmupProgress(LABEL, 3 + side.index, done) for done in range(4) for side in sides]
    few = [TooFewClients(sides[0], 1, 4), TooFewClients(sides[1], 4, 5)]
    place = f"{LABEL}, scale 0.4, repeat 2"
    assert show(*events, *progress_of(0, 1, 2, 3, 4), *few, *progress_of(5, 6, 7, 8)) == [
        "run run: 2 cells",
        f"{LABEL}: ready after 1.2 s; 3 requests to warm up",
        f"{place}: 1 client process is too few, measuring again with 4",
        f"{place}: 4 client processes are too few, measuring again with 5",
    ]


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
    latencies = dict.fromkeys(LATENCIES, distribution(Sample(np.arange(1.0, n + 1), None, np.arange(n))))
    numbers = dict.fromkeys(
        (
            *("num_requests", "num_success", "offered_req_per_s", "req_per_s", "output_tok_per_s"),
            *("total_tok_per_s", "prompt_tokens", "completion_tokens", "chunks"),
        ),
        n,
    )
    notices = [Fact(kind="behind", values={"offered": 9, "answered": 4}), Fact(kind="unreported")]
    return OnlineSummary(
        engine="vllm", label="vLLM", load=CELL.load, repeat=1, num_error=0, duration_s=1, notices=notices,
        **numbers, **latencies,
    )  # fmt: skip


@pytest.mark.parametrize(("n", "words"), [
    (1, "TTFT – ms"), (5, "TTFT p50 3.0 ms"),
    (30, "TTFT p50 15.5 p90 27.1 ms"), (100, "TTFT p50 50.5 p99 99.0 ms"),
])  # fmt: skip
def test_percentiles_that_a_cell_is_too_small_for_are_not_shown(n, words, show):
    [line] = show(CellDone(CELL, summary_of(n)))
    assert words in line and line.count("NOTICE: ") == 1


def test_a_window_without_requests_is_not_called_failed(show: Callable[..., list[str]]) -> None:
    nothing = {"num_requests": 0, "num_success": 0, "invalid_reasons": [Fact(kind="unmeasured")]}
    [line] = show(CellDone(CELL, summary_of(1).model_copy(update=nothing)))
    assert "INVALID: " in line and "failed" not in line


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
    assert shown(10, EngineStarting(LABEL, Path("log"))) == "0:10 elapsed, -:-- left"
    assert shown(40, CellProgress(CELL, 10, Progress(1, 0, 0))) == "0:40 elapsed, -:-- left"
    # 4 cells of 10 s
    assert shown(42, CellProgress(CELL, 10, Progress(3, 2, 0))) == "0:42 elapsed, 0:38 left"
    assert shown(50, CellDone(CELL, summary_of(30))) == "0:50 elapsed, 2:30 left"
    assert shown(55, CellProgress(CELL, 10, Progress(9, 5, 0))) == "0:55 elapsed, 1:32 left"
    for _ in range(2):
        assert shown(60, CellDone(CELL, summary_of(30))) != "1:00 elapsed, -:-- left"
    assert shown(60, CellDone(CELL, summary_of(30))) == "1:00 elapsed, -:-- left"  # what follows is no cell


@pytest.mark.parametrize(("terminal", "printed"), [(True, [0]), (False, [0, 1, 2])])
def test_a_terminal_has_a_line_for_each_cell_of_the_first_repeat(terminal: bool, printed: list[int]) -> None:
    """And for each invalid one: later repeats are alike, and the report has them."""
    text = io.StringIO()
    display = Display(Terminal(file=text, width=200, force_terminal=terminal, color_system=None))
    display.show(Started(Path("run"), 4))
    for repeat in range(3):
        display.show(CellDone(replace(CELL, index=repeat, repeat=repeat), summary_of(30)))
    invalid = {"valid": False, "invalid_reasons": [Fact(kind="unmeasured")]}
    display.show(CellDone(replace(CELL, index=3, repeat=1), summary_of(30).model_copy(update=invalid)))
    lines = [line for line in text.getvalue().splitlines() if line.startswith("[")]
    assert [int(line[1]) - 1 for line in lines] == [*printed, 3] and "INVALID" in lines[-1]
