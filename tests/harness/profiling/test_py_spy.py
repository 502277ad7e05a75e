"""Engines without a profiler: their stacks are sampled. Engines without time: they are asked again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from harness.errors import BusyServerError, EngineError
from harness.profiling.analysis import summarize_profiles
from harness.profiling.py_spy import MOST, StackSampler, read_stacks
from harness.profiling.stage import _Stage
from harness.report.tables.profiles import figure_tables
from harness.runs.events import CaptureWaiting, Event
from harness.schema.profile import Gap, GapPart, ProfileFigures, Profiles, StepFigures

#: Takes the place of py-spy: writes one stack.
PROGRAM = """#!{python}
import sys
open(sys.argv[sys.argv.index("--output") + 1], "w").write("main (a.py:1);step (b.py:2) 3\\n")
"""


def test_functions_are_listed_by_the_share_of_their_own_samples(tmp_path: Path) -> None:
    (tmp_path / "1.stacks").write_text("main;loop;step 30\nmain;loop 10\nother;step 20\n")
    (tmp_path / "2.stacks").write_text("main;wait for it 40\n")
    spent = read_stacks(tmp_path, "transformers")
    assert spent.parts == {"step": 0.5, "wait for it": 0.4, "loop": 0.1} and spent.step_ms is None
    [table] = figure_tables(Profiles(sampled=[spent]))
    assert table.lines[0] == ["transformers", "step", "50.0 %"] and len(table.rows) == 3
    (tmp_path / "3.stacks").write_text("".join(f"f{number} 1\n" for number in range(MOST + 5)))
    parts = read_stacks(tmp_path, "transformers").parts
    assert len(parts) == MOST + 1 and sum(parts.values()) == pytest.approx(1)


@pytest.mark.integration
def test_every_process_is_sampled_until_the_end(tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    sampler = StackSampler([11, 12], tmp_path, str(program))
    sampler.start()
    for process in sampler._processes:
        process.wait()
    sampler.stop()
    assert sorted(file.name for file in tmp_path.glob("*.stacks")) == ["11.stacks", "12.stacks"]
    assert read_stacks(tmp_path, "a").parts == {"step (b.py:2)": 1.0}


@pytest.mark.integration
@pytest.mark.parametrize("reason", ["Permission denied", "Error: Failed to find python version"])
def test_a_program_that_may_not_trace_says_so_without_its_backtrace(reason: str, tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho '{reason}\n\nStack backtrace:\n  0: anyhow' >&2\nexit 1\n")
    program.chmod(0o755)
    sampler = StackSampler([11], tmp_path, str(program))
    sampler.start()
    for process in sampler._processes:
        process.wait()
    with pytest.raises(EngineError, match=rf": {reason}\n") as raised:
        sampler.stop()
    assert "ptrace" in raised.value.hint


@pytest.mark.parametrize("busy", [0, 2, 9])
def test_a_busy_engine_is_asked_again(busy: int) -> None:
    events: list[Event] = []
    waiting = CaptureWaiting("A", "", 0.0)
    made = cast(Any, _Stage)(None, None, None, events.append, waiting, waits_s=(0.0, 0.0, 0.0))
    asked = []

    def capture_now() -> None:
        asked.append(None)
        if len(asked) <= busy:
            raise BusyServerError("POST /start_profile answered 503")

    if busy > 3:
        with pytest.raises(BusyServerError):
            made._capture_once_free(capture_now)
    else:
        made._capture_once_free(capture_now)
    assert len(asked) == min(busy, 3) + 1
    assert events == [CaptureWaiting("A", "POST /start_profile answered 503", 0.0)] * min(busy, 3)


def test_the_summary_is_what_took_the_time() -> None:
    categories: Any = {"attention": 1.0, "matmul": 3.0}
    step = StepFigures(
        n=4,
        period_ms=6,
        period_p50_ms=6,
        busy_ms=4,
        gap_ms=2,
        kernels=9,
        kernel_us=1,
        categories_ms=categories,
    )
    figure = ProfileFigures(
        tool="torch", label="A", device="cpu", steps_by="x", steps={"decode": step}, capture_ms=24,
        busy_share=0.6, components={}, kernels=[],
    )  # fmt: skip
    part = GapPart(name="matmul", value_a=3, value_b=1, delta=2, source="x")
    gap = cast(Any, Gap).model_construct(
        a="A", b="B", metric="tpot_ms", delta=2.5, parts=[part], unexplained=0.5
    )
    found = summarize_profiles(Profiles.model_construct(figures=[figure], gaps=[gap], sampled=[]))
    [spent], [difference] = found.spent, found.gaps
    assert [*spent.parts.items()] == [("matmul", 3.0), ("idle", 2.0), ("attention", 1.0)]
    assert spent.step_ms == 6 and sum(spent.parts.values()) == 6
    assert difference.parts == {"matmul": 2} and difference.unexplained == 0.5
