"""The parts of TTFT add up, whatever is known of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.summary import summarize, waterfall
from harness.schema.fairness import PARTS, ReportedMean, Waterfall

from .conftest import build

times = st.floats(0, 100)
requests = st.lists(
    st.fixed_dictionaries(
        {
            "t_sched": times,
            "lag": st.floats(0, 1),
            "ttft": st.floats(1e-3, 10),
            "head": st.none() | st.floats(0, 1.5),
            "queue_wait_ms": st.none() | st.floats(0, 11_000),
            "prefill_ms": st.none() | st.floats(0, 11_000),
            "cell": st.integers(0, 2),
        }
    ),
    min_size=1,
    max_size=8,
)
means = st.dictionaries(
    st.integers(0, 2),
    st.dictionaries(
        st.sampled_from(["queue_wait_ms", "prefill_ms"]),
        st.builds(ReportedMean, mean_ms=st.floats(0, 11_000), n=st.integers(1, 100)),
    ),
)


def rows(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for row in given:
        sent = row["t_sched"] + row["lag"]
        head = None if row["head"] is None else sent + row["head"] * row["ttft"]
        kept = {name: row[name] for name in ("t_sched", "queue_wait_ms", "prefill_ms", "cell")}
        found.append({**kept, "t_sent": sent, "t_head": head, "chunks": [(sent + row["ttft"], 1)]})
    return found


def parts(found: Waterfall) -> dict[str, Any]:
    return {part.part: part for part in found.parts}


@given(given=requests, reported=means)
def test_the_parts_add_up_to_ttft(given: list[dict[str, Any]], reported: dict[int, Any]) -> None:
    found = waterfall(build(rows(given))[0], reported)
    assert found is not None
    assert [part.part for part in found.parts] == list(PARTS)
    known = [part.mean_ms for part in found.parts if part.mean_ms is not None]
    assert sum(known) == pytest.approx(found.total_ms, abs=1e-6)
    assert found.ttft_ms == pytest.approx(1e3 * sum(row["ttft"] for row in given) / len(given), abs=1e-6)
    assert all(part.mean_ms is None or part.mean_ms >= 0 for part in found.parts[:-1])
    for part in found.parts:
        assert (part.mean_ms is None) == (part.n == 0) == (part.source == "unknown")


@given(given=requests)
def test_the_head_never_takes_the_engine_s_time(given: list[dict[str, Any]]) -> None:
    """What is left over is below 0 only where the engine reports more than the client saw."""
    fitting = [
        row for row in given if (row["queue_wait_ms"] or 0) + (row["prefill_ms"] or 0) <= row["ttft"] * 1e3
    ]
    found = waterfall(build(rows(fitting))[0], {})
    assert found is None or parts(found)["unexplained"].mean_ms >= -1e-6


def test_an_engine_that_tells_each_request_leaves_only_delivery_to_be_inferred() -> None:
    row = {"t_sched": 1.0, "t_sent": 1.002, "t_head": 1.005, "queue_wait_ms": 10.0, "prefill_ms": 20.0}
    found = waterfall(build([{**row, "chunks": [(1.042, 1)]}] * 3)[0], {})
    assert found is not None
    shown = {name: (part.mean_ms, part.source) for name, part in parts(found).items()}
    assert {name: source for name, (_, source) in shown.items()} == {
        "client lag": "measured",
        "http": "measured",
        "queue": "measured",
        "prefill": "measured",
        "delivery": "inferred",
        "unexplained": "inferred",
    }
    assert [ms for ms, _ in shown.values()] == pytest.approx([2, 3, 10, 20, 7, 0])


@pytest.mark.parametrize("head", [0.05, 0.0499, 0.03])
def test_a_head_that_comes_with_the_first_token_tells_nothing(head: float) -> None:
    row = {"t_head": head, "queue_wait_ms": 10.0, "prefill_ms": 20.0, "chunks": [(0.05, 1)]}
    found = waterfall(build([row])[0], {})
    assert found is not None
    assert {name: part.source for name, part in parts(found).items() if part.source == "unknown"} == {
        "http": "unknown",
        "delivery": "unknown",
    }
    assert parts(found)["unexplained"].mean_ms == pytest.approx(20)


def test_histograms_are_inferred_and_weigh_cells_by_their_requests() -> None:
    row = {"t_head": 0.01, "chunks": [(0.1, 1)]}
    cells = [{**row, "cell": 0, "repeat": 0}, *[{**row, "cell": 1, "repeat": 1}] * 3]
    reported = {
        0: {"queue_wait_ms": ReportedMean(mean_ms=10, n=1), "prefill_ms": ReportedMean(mean_ms=50, n=1)},
        1: {"queue_wait_ms": ReportedMean(mean_ms=30, n=3)},
    }
    *_, pooled = summarize(*build(cells), reported=reported)
    assert pooled.queue_wait_ms.mean == pytest.approx(25)
    assert (pooled.queue_wait_ms.source, pooled.queue_wait_ms.n) == ("inferred", 4)
    assert pooled.queue_wait_ms.p50 is None
    assert pooled.waterfall is not None
    found = parts(pooled.waterfall)
    assert (found["queue"].mean_ms, found["queue"].source) == (pytest.approx(25), "inferred")
    assert found["prefill"].mean_ms == pytest.approx(12.5)
    assert found["prefill"].n == 1
    assert (found["delivery"].mean_ms, found["delivery"].n) == (pytest.approx((100 - 10 - 10 - 50) / 4), 1)
    assert found["unexplained"].mean_ms == pytest.approx(100 - 10 - 25 - 12.5 - 7.5)


def test_nothing_succeeded_nothing_to_explain() -> None:
    failed = {"chunks": [], "error": "no_tokens"}
    [summary, *_] = summarize(*build([failed]))
    assert summary.waterfall is None
    assert summary.queue_wait_ms.source == "unknown"
