"""What keeps figures from being believed at sight, in few words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.report.best import disturbed_labels, fell_behind
from harness.report.text.badges import UNCOMMITTED
from harness.report.text.code_notices import is_uncommitted
from harness.report.text.numbers import few
from harness.runs.reader import OnlineRun, Run
from harness.schema.online_summary import OnlineSummary


def caveats(
    run: OnlineRun, cells: Sequence[OnlineSummary], judged: Sequence[OnlineSummary] = ()
) -> Iterator[str]:
    """Of some cells of a run, and which of `judged` did not keep up with the load."""
    yield from _fell_behind(judged)
    yield from _unchecked(run)
    yield from _disturbed(cells)
    yield from _slowed_down(cells)
    yield from uncommitted(run)


def uncommitted(run: Run) -> Iterator[str]:
    """Whether the measured code is in no commit."""
    if is_uncommitted(run):
        yield UNCOMMITTED


def _fell_behind(cells: Sequence[OnlineSummary]) -> Iterator[str]:
    """Which engines did."""
    if found := [cell.label for cell in cells if fell_behind(cell)]:
        yield f"{few(found)} fell behind: latencies grow with the run"


def _unchecked(run: OnlineRun) -> Iterator[str]:
    """Whether the engines are known to compute the same."""
    answers = run.results.answers
    unknown = (
        [] if answers is None else [check.label for check in answers.checks if check.verdict == "unknown"]
    )
    if answers is None or unknown:
        yield f"answers{f' of {few(unknown)}' if unknown else ''} not checked"


def _disturbed(cells: Sequence[OnlineSummary]) -> Iterator[str]:
    """While which engines the machine was disturbed."""
    if found := disturbed_labels(cells):
        yield f"machine disturbed for {few(found)}"


def _slowed_down(cells: Sequence[OnlineSummary]) -> Iterator[str]:
    """Whether a GPU lowered its clocks, and while which engines were measured, if not all."""
    found = {
        cell.label: any("power cap" in text for text in texts)
        for cell in cells
        if (texts := [notice.text for notice in cell.notices if notice.kind == "throttled"])
    }
    if found:
        whose = "" if found.keys() == {cell.label for cell in cells} else f" for {few(list(found))}"
        yield f"GPU {'power-capped' if all(found.values()) else 'slowed down'}{whose}"
