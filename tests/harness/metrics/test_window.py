"""The steady state of a cell, and what is counted in a window."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.metrics.rates import count
from harness.metrics.samples import find_window, split
from harness.metrics.summary import SummaryInputs, summarize
from harness.schema.limits import Slo
from harness.schema.setting_types import Window
from tests.harness.metrics.conftest import build, compare, summaries


def request(start, first, last, tokens=5, **columns):
    chunks = [(first, 1), (last, tokens - 1)] if tokens > 1 else [(first, 1)]
    return {"t_sched": start, "t_sent": start, "chunks": chunks, "t_end": last} | columns


def ramp():
    """One request more every second up to 5 in flight, 5 until second 20, then one fewer every second."""
    rows = []
    for lane in range(5):
        begins = np.arange(lane, 20 + lane, 4.0) if lane else np.arange(0, 20, 4.0)
        rows += [request(t, t + 1, t + 4) for t in begins]
    return rows


def steady(rows):
    found = find_window(build(rows)[0], "steady")
    return found.start_s, found.end_s


def test_the_steady_state_is_without_the_ramps():
    assert steady(ramp()) == (4, 20)


def test_a_closed_loop_is_steady_from_the_first_full_moment_to_the_last():
    rows = [request(t, t + 0.5, t + 1) for t in range(50)] + [request(0.25, 1, 49.5)]
    start, end = steady(rows)
    assert (start, end) == (0.25, 49.5)


def test_a_load_that_is_never_two_at_once_is_steady_throughout():
    assert steady([request(t, t + 0.1, t + 0.2) for t in range(10)])[1] == 9.2


def agents():
    """Two agents: one with ten jobs of two turns until second 40, one with a job that goes on until 59."""
    rows = []
    for session in range(10):
        at = 4 * session
        rows += [request(t, t + 0.5, t + 2, session=session) for t in (at, at + 2)]
    rows += [request(t, t + 0.5, t + 1, session=10) for t in np.arange(0, 60, 2.0)]
    rows[19]["session_start"], rows[-1]["session_start"] = 36.0, 0.0
    return rows


def test_the_longest_job_sets_no_rate_and_is_among_the_jobs():
    assert steady(agents()) == (0, 40)
    for summary in summaries(agents(), cut="steady"):
        assert summary.req_per_s == pytest.approx(40 / 40)
        assert summary.session_ms.n == 2 and summary.session_ms.max == 59_000
    [whole, _] = summaries(agents())
    assert whole.req_per_s == pytest.approx(50 / 59)


def test_a_cell_without_answers_has_no_window():
    rows = [{"t_sent": None, "error": "connect"}, {"t_sent": None, "error": "connect"}]
    [repeat, _] = summaries(rows, cut="steady")
    assert (repeat.num_success, repeat.valid, repeat.duration_s) == (0, False, 0)


def test_latencies_are_of_requests_sent_inside_and_rates_of_what_came_inside():
    rows = [
        request(0, 1, 3, request=0),  # sent before, ends inside
        request(2.5, 4, 6, request=1),  # sent and ended inside
        request(7, 8, 12, request=2),  # sent inside, ends after
        request(11, 12, 13, request=3),  # sent after
    ]
    [repeat, _] = summaries(rows, slo=Slo(e2e_ms=3200), cut=Window(start_s=2, end_s=10))
    assert (repeat.window_s, repeat.duration_s) == ((2, 10), 8)
    assert (repeat.num_requests, repeat.left_out) == (2, 2)
    assert repeat.ttft_ms.n == 2 and repeat.ttft_ms.mean == pytest.approx(1250)
    assert repeat.req_per_s == 2 / 8
    assert repeat.completion_tokens == 4 + 5 + 1
    assert repeat.output_tok_per_s == 10 / 8
    assert repeat.prompt_tokens == 20
    assert repeat.goodput_req_per_s == 1 / 8


def test_a_failure_outside_the_window_makes_the_cell_invalid_all_the_same():
    rows = [*ramp(), request(30, 31, 32, error="timeout", request=99)]
    [repeat, pooled] = summaries(rows, cut=Window(start_s=4, end_s=20))
    assert repeat.num_error == 0 and not repeat.valid and not pooled.valid
    assert [reason.values for reason in repeat.invalid_reasons] == [{"failed": 1, "requests": 26}]


streams = st.lists(
    st.tuples(st.floats(0, 20), st.floats(0.001, 3), st.floats(0.001, 3), st.integers(1, 6), st.booleans()),
    min_size=1,
    max_size=25,
)


def rows_of(drawn):
    rows = [
        request(start, start + first, start + first + rest, tokens, **({"error": "timeout"} if bad else {}))
        for start, first, rest, tokens, bad in drawn
    ]
    for row, (_, _, _, tokens, _) in zip(rows, drawn, strict=True):
        if tokens == 1:
            row["t_end"] = row["chunks"][-1][0]
    return rows


@settings(max_examples=20)
@example([(0.0, 1.0, 2.0, 2, False), (0.0, 1.0, 2.5, 2, False), (0.0, 1.0, 2.599579248610616, 2, False)])
@given(streams)
def test_a_window_around_everything_changes_nothing(drawn):
    tables = build(rows_of(drawn))
    start = min(start for start, *_ in drawn)
    inputs = SummaryInputs(slo=Slo(ttft_ms=500))
    [whole, _] = summarize(split(*tables), inputs)
    [cut, _] = summarize(split(*tables, Window(start_s=start, end_s=1e6)), inputs)
    assert cut.window_s is not None and cut.left_out == 0
    plain = whole.model_dump(exclude={"window_s"})
    for name, value in cut.model_dump(exclude={"window_s"}).items():
        assert value == (pytest.approx(plain[name]) if isinstance(value, float) else plain[name]), name


def counts(requests, chunks, cut):
    """Requests, successes, and tokens of answers and prompts, as a summary has them."""
    [group] = split(requests, chunks, cut)
    assert len(group.whole.requests) == len(requests)
    sums = count(group, None)
    return [len(group.requests), len(group.good), sums.output_tokens, sums.prompt_tokens]


@settings(max_examples=20)
@given(streams, st.lists(st.floats(0, 25), max_size=3))
@example([(0.0, 1.0, 1.0, 1, False)] * 10, [5e-324])  # a window in which no time passes
def test_windows_side_by_side_hold_every_token_and_request_once(drawn, cuts):
    rows = [row | {"request": i} for i, row in enumerate(rows_of(drawn))]
    tables = build(rows)
    times = {t for row in rows for t in (row["t_sent"], row["t_end"], *(t for t, _ in row["chunks"]))}
    edges = [0, *sorted(edge for edge in set(cuts) if edge not in times and edge > 0), 1e6]
    found = [counts(*tables, Window(start_s=a, end_s=b)) for a, b in pairwise(edges)]
    assert np.sum(found, axis=0).tolist() == counts(*tables, None)


@settings(max_examples=20)
@given(streams)
def test_the_steady_state_lies_inside_the_cell(drawn):
    rows = rows_of(drawn)
    start, end = steady(rows)
    first, last = min(start for start, *_ in drawn), max(row["t_end"] for row in rows)
    assert first - 1e-9 <= start <= end <= last + 1e-9


def test_comparisons_are_of_the_window_too():
    rows = []
    for cell, label in enumerate("ab"):
        for i in range(120):
            slow = 3.0 if i < 20 and label == "a" else 1.0
            columns = {"cell": cell, "label": label, "engine": label, "request": i}
            rows.append(request(i, i + 0.1 * slow, i + 0.5, **columns))
    whole = compare(*build(rows))
    cut = compare(*build(rows), cut=Window(start_s=20, end_s=200))
    by = [
        {(comparison.metric, comparison.statistic): comparison.ratio for comparison in found}
        for found in (whole, cut)
    ]
    assert by[0]["ttft_ms", "p90"] > 2
    assert by[1]["ttft_ms", "p90"] == pytest.approx(1)
