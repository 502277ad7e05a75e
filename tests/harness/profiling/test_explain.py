"""Differences between engines explained by their profiles, and what stays unexplained."""

from __future__ import annotations

from typing import Any

import pytest

from harness.profiling.explain import OUTSIDE, explain
from harness.report.tables.profiles import (
    conclusion,
    difference,
    figure_tables,
    gap_table,
    gaps_table,
    profiled,
    unexplained,
)
from harness.schema.fairness import Waterfall
from harness.schema.load import ClosedLoop, Load, TraceLoad
from harness.schema.metrics import LATENCIES
from harness.schema.online_settings import OnlineSettings
from harness.schema.profile import Category, Gap, Level, ProfileFigures, ProfileRun, Profiles, StepFigures
from harness.schema.results import Comparison, Distribution, OnlineResults, OnlineSummary
from harness.schema.run_info import RunInfo, Versions

META = RunInfo(
    created="", command=[], settings=OnlineSettings(), versions=Versions(rosebench="0", python="3")
)


LEVELS: dict[tuple[str, Load], Level] = {
    ("A", TraceLoad(scale=1.0)): Level(in_flight=4, running=1.25),
    ("B", TraceLoad(scale=1.0)): Level(in_flight=4, running=3.5),
}


def summary(label: str, itl_ms: float, **parts: float) -> OnlineSummary:
    ttft = sum(parts.values())
    means = {"itl_ms": itl_ms, "tpot_ms": itl_ms, "ttft_ms": ttft, "e2e_ms": ttft + 10 * itl_ms}
    known: dict[str, Any] = {name: Distribution(mean=means.get(name), n=name in means) for name in LATENCIES}
    known_parts = [
        {"part": name, "mean_ms": ms, "n": 1, "source": "measured", "how": "the client"}
        for name, ms in parts.items()
    ]
    times = {"total_ms": ttft, "ttft_ms": ttft}
    waterfall = Waterfall.model_validate({"n": 1, **times, "parts": known_parts})
    return OnlineSummary(
        engine="roseinfer", label=label, load=TraceLoad(scale=1),
        num_requests=1, num_success=1, num_error=0, duration_s=1,
        offered_req_per_s=1, req_per_s=1, output_tok_per_s=1, total_tok_per_s=1, prompt_tokens=1,
        completion_tokens=1, chunks=1, waterfall=waterfall, **known,
    )  # fmt: skip


def verdict(metric: str, found: Any) -> Comparison:
    pair = {"a": "A", "b": "B", "load": TraceLoad(scale=1), "value_a": 2, "value_b": 1, "ratio": 2}
    return Comparison.model_validate({**pair, "metric": metric, "statistic": "p50", "verdict": found})


def profile(
    label: str, step_ms: float | None, busy: dict[Category, float], idle: float, device: str = "cpu"
) -> Any:
    full: dict[Category, float] = {
        **{"attention": 0, "matmul": 0, "norm and elementwise": 0, "sampling": 0},
        **{"memory copies": 0, "communication": 0, "other": 0},
        **busy,
    }
    period = sum(full.values()) + idle
    step = StepFigures(
        n=9, period_ms=period, period_p50_ms=period, busy_ms=period - idle, gap_ms=idle, kernels=4,
        kernel_us=1, categories_ms=full, batch=3,
    )  # fmt: skip
    run = ProfileRun(
        tool="torch", engine="roseinfer", label=label, cmd=[], load=TraceLoad(scale=1), n=1,
        steps=9, output_dir="o",
        level=Level(in_flight=4, running=3, step_ms=step_ms), log_path="l", wall_s=1,
    )  # fmt: skip
    figures = ProfileFigures.model_validate({
        "tool": "torch", "label": label, "device": device, "steps_by": "ranges", "steps": {"decode": step},
        "capture_ms": 1, "busy_share": 1, "components": {}, "kernels": [],
    })  # fmt: skip
    return run, figures


def taken_apart(a: OnlineSummary, b: OnlineSummary, profiles: Any, *found: Comparison) -> list[Gap]:
    results = OnlineResults(meta=META, summaries=[a, b], comparisons=list(found))
    runs, figures = [profile[0] for profile in profiles], [profile[1] for profile in profiles]
    return explain(results, runs, figures, LEVELS)


def time_per_token(profiles: Any, *others: Comparison) -> Gap:
    """The gap in ITL, 9 and 5 ms, as these profiles explain it."""
    pair = summary("A", 9, http=1), summary("B", 5, http=1)
    [gap] = taken_apart(*pair, profiles, verdict("itl_ms", "worse"), *others)
    return gap


@pytest.mark.parametrize(
    ("verdict_of", "valid"), [("no difference", True), ("not enough data", True), ("worse", False)]
)
def test_only_what_a_verdict_calls_a_difference_between_valid_cells(verdict_of, valid):
    a, b = summary("A", 9, http=1, queue=50), summary("B", 4, http=1, queue=1)
    b = b.model_copy(update={"valid": valid})
    assert taken_apart(a, b, [], verdict("ttft_ms", verdict_of), verdict("itl_ms", verdict_of)) == []


def test_ttft_by_its_waterfall() -> None:
    pair = summary("A", 4, http=2, queue=50, prefill=9), summary("B", 4, http=1, queue=1, prefill=9)
    [found] = taken_apart(*pair, [], verdict("ttft_ms", "worse"))
    assert found.delta == pytest.approx(50)
    assert {part.name: part.delta for part in found.parts} == pytest.approx(
        {"http": 1, "queue": 49, "prefill": 0}
    )
    assert found.unexplained == pytest.approx(0)
    assert "is queue, +49.00 ms" in conclusion(found)
    assert conclusion(found) in gap_table(found).title
    assert gap_table(found).notes[0] == "A: 1.2 requests running on average, 4 in flight, when tokens came."


def test_ttft_of_which_the_head_tells_nothing() -> None:
    """The rest of TTFT is before or after the engine; which of the two is unknown."""
    pair = summary("A", 4, queue=1, prefill=9, unexplained=60), summary("B", 4, queue=1, prefill=9)
    [found] = taken_apart(*pair, [], verdict("ttft_ms", "worse"))
    assert found.parts[-1].name == OUTSIDE
    assert found.parts[-1].delta == pytest.approx(60)
    assert found.unexplained == pytest.approx(0)


def test_time_per_token_by_the_profiles() -> None:
    profiles = [profile("A", 9, {"matmul": 6.5}, 2.5), profile("B", 5, {"matmul": 3}, 2)]
    found = time_per_token(profiles, verdict("tpot_ms", "worse"))
    assert found.verdicts == {"itl_ms": {"p50": "worse"}, "tpot_ms": {"p50": "worse"}}
    assert sum(part.delta for part in found.parts) + found.unexplained == pytest.approx(found.delta)
    assert "is decode step: matmul, +3.50 ms" in conclusion(found)
    table = difference(*(profile[1] for profile in profiles))
    assert ["decode", "matmul", "6.500", "3.000", "+3.500"] in table.lines
    (row,) = gaps_table([found]).rows
    assert [cell.text for cell in row[:3]] == ["ITL", "A", "B"]
    assert [cell.value for cell in row[4:7]] == [found.value_a, found.value_b, found.delta]
    assert row[7].text == "decode step: matmul, +3.50 ms" and row[8].value == found.unexplained


def test_sums_over_ranks_are_a_part_of_their_own() -> None:
    profiles = [
        profile("A", 9, {"matmul": 4, "communication": 3}, 2, "cuda"),
        profile("B", 5, {"matmul": 3, "communication": 0.5}, 1.5, "cuda"),
    ]
    assert "is decode step: communication, +2.50 ms" in conclusion(time_per_token(profiles))


def test_what_the_parts_do_not_reach_is_not_explained() -> None:
    gap = time_per_token([profile("A", 8, {"matmul": 5.5}, 2.5), profile("B", 6, {"matmul": 4.5}, 2)])
    assert gap.unexplained == pytest.approx(4 - 1.5) and conclusion(gap).startswith("not explained")


def test_a_profile_that_is_not_the_benchmark_says_so() -> None:
    profiles = [profile("A", 9, {"matmul": 10}, 2), profile("B", 5, {"matmul": 3}, 2)]
    found = time_per_token(profiles)
    assert "not representative" in conclusion(found) and "matmul" in conclusion(found)
    assert any("+33 %" in note for note in gap_table(found).notes)


def test_idle_time_of_a_slowed_host_is_what_its_kernels_leave() -> None:
    """The kernels of a GPU take as long under a profiler as without; what lies between them does not."""
    profiles = [profile("A", 9, {"matmul": 3}, 9, "cuda"), profile("B", 5, {"matmul": 2}, 4.5, "cuda")]
    found = time_per_token(profiles)
    assert {part.name: (part.value_a, part.value_b) for part in found.parts} == {
        "decode step: matmul": (3, 2),
        "steps with others' prompts in them: their kernels": (0, 0),
        "GPU idle": (6, 3),
    }
    assert found.parts[-1].source.startswith("inferred")
    assert "is GPU idle, +3.00 ms" in conclusion(found) and "inferred" in conclusion(found)
    assert any("not representative" in note for note in gap_table(found).notes)


@pytest.mark.parametrize(("kernels", "idle"), [(12, 0), (3, 1)])
def test_kernels_that_are_not_the_benchmarks_explain_nothing(kernels: float, idle: float) -> None:
    """The kernels take longer than the benchmark's step, or the profiled step is the shorter one."""
    profiles = [profile("A", 9, {"matmul": kernels}, idle, "cuda"), profile("B", 5, {"matmul": 2}, 3, "cuda")]
    found = time_per_token(profiles)
    assert conclusion(found).startswith("not explained: the profile is not representative")


def test_without_profiles_there_is_no_explanation() -> None:
    found = time_per_token([])
    assert conclusion(found) == "not explained: there is no profile of both engines"
    assert found.unexplained == found.delta
    assert unexplained([found, found.model_copy(update={"b": "C"})]) == [
        "ITL of A against B, scale 1; ITL of A against C, scale 1: "
        "not explained: there is no profile of both engines."
    ]


@pytest.mark.parametrize("elsewhere", [0, 1])
@pytest.mark.parametrize("other", [TraceLoad(scale=0.5), ClosedLoop(concurrency=8)])
def test_a_profile_of_another_load_explains_nothing(elsewhere: int, other: Load) -> None:
    profiles = [profile("A", 9, {"matmul": 6.5}, 2.5), profile("B", 5, {"matmul": 3}, 2)]
    run, figures = profiles[elsewhere]
    profiles[elsewhere] = run.model_copy(update={"load": other}), figures
    assert conclusion(time_per_token(profiles)) == "not explained: the profile is of another load"


def test_the_tables_of_steps_say_what_their_columns_are() -> None:
    figures = [profile("roseinfer", 2.0, {"matmul": 1}, 1)[1]]
    shown = figure_tables(Profiles(figures=figures))
    for table, head in zip(shown, ("batch", "together"), strict=True):
        assert head in table.headers and any(
            note.startswith(f"{head.capitalize()}: ") for note in table.notes
        )


def test_what_was_profiled_is_told() -> None:
    (run, _), (other, _) = profile("A", 9, {}, 1), profile("B", 9, {}, 1)
    other = other.model_copy(update={"load": None})
    both = [run, run.model_copy(update={"tool": "nsys"}), other]
    assert profiled(both) == (
        "A at scale 1 with 4 requests in flight (torch and nsys); B with 4 requests in flight (torch)"
    )
    closed = [other.model_copy(update={"load": ClosedLoop(concurrency=count)}) for count in (4, 5)]
    assert profiled(closed) == (
        "B with 4 requests in flight (torch); B with 5 requests in flight, 4 on average (torch)"
    )
