"""Charts as data: the numbers of the results, whatever the text, and the library as it came."""

import csv
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness.report
from harness.metrics.samples import Sample
from harness.profiling.artifacts import read_profiles
from harness.report.charts.by_load import acceptance, by_load, ecdf
from harness.report.charts.chart import MANY, Axis, Chart, Limit, Series, data_block
from harness.report.charts.looks import looks
from harness.report.charts.run_charts import charts
from harness.report.figures import axis_ends, axis_ticks
from harness.runs.reader import load_run
from harness.schema.limits import Slo
from harness.schema.load import TraceLoad
from harness.schema.results import Speculation, SpeculationCount

from ..conftest import ENGINES, make_online

REPORTS = Path(__file__).parents[4] / "reports"

LIBRARY = Path(harness.report.__file__).parent / "vendor" / "uplot"
HOSTILE = "</script><script>alert(1)</script>\u202e&\"'\x00\ud800"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("charts") / "run"
    made = make_online(folder, engines=ENGINES[::2], scales=[0.5, 1.0], repeats=1, n=110)
    return load_run(made, trust=True)


@pytest.fixture(scope="module")
def styles(run):
    return looks((summary.engine, summary.label) for summary in run.pooled)


@pytest.fixture(scope="module")
def every(run):
    return charts(run).every


def test_every_chart_of_a_run_is_there_and_is_alike_each_time(run, every):
    assert {"frontier", "ttft", "tpot", "itl", "e2e", "ecdf_ttft_scale_0.5", "tradeoff_ttft"} <= set(every)
    assert {"timeline_scale_1", "in_flight_scale_1", "requests_vLLM_scale_0.5"} <= set(every)
    assert {name: chart.data() for name, chart in charts(run).every.items()} == {
        name: chart.data() for name, chart in every.items()
    }


def test_a_chart_has_the_numbers_of_the_results(run, every):
    rows = list(csv.DictReader(io.StringIO(every["ttft"].csv())))
    for summary in run.pooled:
        found = [r for r in rows if (r["engine"], r["note"]) == (summary.label, str(summary.load))]
        assert {row["part"] for row in found} == {"p50", "p90", "p99"}
        for row in found:
            q = row["part"]
            assert float(row["TTFT, ms"]) == pytest.approx(getattr(summary.ttft_ms, q), rel=1e-5)
            assert row["valid"] == str(summary.valid) and int(row["n"]) == summary.ttft_ms.n
            if ends := summary.ttft_ms.ci.get(q):
                assert [float(row["low"]), float(row["high"])] == pytest.approx(ends, rel=1e-5)


def test_an_invalid_cell_is_marked_in_every_chart_and_its_data(run, every):
    """A cell of vLLM at scale 0.5 has failures."""
    [wrong] = [summary for summary in run.pooled if not summary.valid]
    assert (wrong.label, str(wrong.load)) == ("vLLM", "scale 0.5")
    for name, chart in every.items():
        rows = list(csv.DictReader(io.StringIO(chart.csv())))
        here = name.endswith("_scale_0.5")
        if here:
            assert {row["valid"] for row in rows if row["engine"] == "vLLM"} <= {"False"}, name
            assert "invalid: vLLM" in chart.note or "vLLM" not in chart.labels, name
        elif chart.x.ticks:
            assert {row["valid"] for row in rows if row["engine"] == "vLLM"} == {"True", "False"}, name
        assert all(row["valid"] == "True" for row in rows if row["engine"] != "vLLM"), name
    [curve, marks] = [s for s in every["ecdf_ttft_scale_0.5"].series if s.label == "vLLM"]
    assert not curve.crossed and list(marks.crossed) == [0, 1, 2]
    assert "× invalid: vLLM" in every["ecdf_ttft_scale_0.5"].note
    band = next(s for s in every["ttft"].series if (s.label, s.kind) == ("vLLM", "band"))
    assert list(band.invalid) and not band.crossed
    assert "× invalid" in every["tradeoff_ttft"].note and "invalid" not in every["ecdf_ttft_scale_1"].note


def test_the_data_of_bars_has_no_ends_and_no_column_twice(offline_run):
    for chart in charts(load_run(offline_run)).bars:
        head, *rows = csv.reader(io.StringIO(chart.csv()))
        assert head == ["engine", "part", chart.x.label, "low", "high", "n", "valid", "note"]
        assert {row[1] for row in rows} == {"mean", "repeat"}
        assert all(float(row[2]) > 0 and row[3:5] == ["", ""] for row in rows)


def test_the_data_of_a_distribution_and_of_loads_is_numbers(every):
    rows = list(csv.DictReader(io.StringIO(every["ecdf_ttft_scale_1"].csv())))
    assert {float(row["share of requests, %"]) for row in rows} >= {25, 50, 90, 99, 100}
    loads = [replace(s, x=[1.0], y=[2.0], low=(), high=(), n=(), notes=()) for s in every["ttft"].series[:1]]
    many = replace(every["ttft"], x=Axis("requests in flight", ticks=[(1.0, "1,024")]), series=loads)
    assert [row["requests in flight"] for row in csv.DictReader(io.StringIO(many.csv()))] == ["1024"]


def test_the_load_grows_to_the_right_and_is_named_by_its_rate(run, every):
    ticks = every["ttft"].x.ticks
    offered = [summary.offered_req_per_s for summary in run.pooled if summary.label == "vLLM"]
    assert [place for place, _ in ticks] == sorted(place for place, _ in ticks)
    assert [name for _, name in ticks] == [f"{rate:.3g}" for rate in sorted(offered)]


def test_a_service_level_is_a_line(run):
    (limit,) = by_load(run.pooled, "ttft_ms", Slo(ttft_ms=200)).limits
    assert limit == Limit("y", 200, "SLO 200")
    assert not by_load(run.pooled, "tpot_ms", Slo(ttft_ms=200)).limits


def test_the_data_block_holds_any_text_and_ends_where_it_ends(every, styles):
    label = next(iter(styles))
    chart = replace(
        every["ttft"], title=HOSTILE, series=[replace(s, label=HOSTILE) for s in every["ttft"].series]
    )
    block = data_block({"run-1": ({"it": chart}, {HOSTILE: styles[label]})}, {})
    assert not set("<>&") & set(block)
    read = json.loads(block)
    assert "<script>alert(1)" in read["charts"]["run-1/it"]["title"]
    [known] = read["looks"]["run-1"]
    assert {series["label"] for series in read["charts"]["run-1/it"]["series"]} == {known}
    assert "\x00" not in known and "\u202e" not in known


def test_parts_of_a_step_are_a_bar_an_engine_and_add_up_to_it():
    run = load_run(REPORTS / "h200-gpt2-both-profilers", trust=True)
    found = charts(run)
    [chart] = found.profile
    assert chart.labels == ["SGLang", "vLLM", "roseinfer"] and chart.rows == 3
    figures = {(each.label, each.tool): each.steps["decode"] for each in read_profiles(run.path).figures}
    for label in chart.labels:
        parts = {series.part: series.x[0] for series in chart.series if series.label == label}
        assert sum(parts.values()) == pytest.approx(figures[label, "nsys"].period_ms, rel=1e-6)
    [waterfall] = found.waterfalls.values()
    assert "SGLang reported no parts" in waterfall.note and len(waterfall.key) > 4
    frontier = next(series for series in found.first[0].series if series.kind == "line")
    assert list(frontier.names) == ["0.4"]


def test_each_point_over_time_says_which_request_it_is(run, every):
    for series in every["timeline_scale_1"].series:
        facts = dict(series.facts)
        numbers = facts["request"]
        assert len(numbers) == len(series.x) == len(set(numbers))
        assert all(ahead >= 0 for ahead in facts["ahead of it without a first token"])


@pytest.mark.parametrize("count", [MANY, MANY + 1, 12])
def test_many_engines_have_a_panel_each(count):
    labels = [f"engine {number}" for number in range(count)]
    series = [Series(label, "line", [1.0, 2.0], [3.0, 4.0 + i]) for i, label in enumerate(labels)]
    chart = Chart("many", "Many", Axis("x", ticks=[(1.0, "1"), (2.0, "2")]), Axis("y"), series)
    assert chart.multiples == chart.data()["multiples"] == (count > MANY)


NUMBERS = st.floats(1e-6, 1e9)


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.booleans())
def test_what_is_shown_lies_within_the_axis(values, log):
    chart = [Series("a", "line", values, values)]
    axis = Axis("ms", log=log)
    low, high = axis_ends(axis, chart, "x")
    marks = axis_ticks(axis, low, high)
    assert low <= min(values) and max(values) <= high
    assert all(low <= value <= high for value, _ in marks)
    assert len(marks) <= 25
    assert not log or marks[0][0] == low, "the axis begins without a number"


def test_a_distribution_has_an_axis_like_other_charts():
    """One request of many that is answered at once is not what the axis is for."""
    took = np.array([0.001, *np.geomspace(300.0, 50_000.0, 499)])
    sample = Sample(took, None, np.arange(took.size))
    group: Any = SimpleNamespace(label="a", load=TraceLoad(scale=1), sample=lambda metric: sample)
    chart = ecdf([group], "ttft_ms", None)
    low, high = axis_ends(chart.x, chart.shown, "x")
    assert chart.x.log and high == pytest.approx(1.15 * 50_000)
    names = [name for _, name in axis_ticks(chart.x, low, high)]
    assert names == ["200", "500", *(f"{n},000" for n in (1, 2, 5, 10, 20, 50))]


@pytest.mark.parametrize("values", [[-0.6], [-2.0, -0.5], [0.0], [3.0]])
def test_an_axis_goes_upwards_whatever_is_shown(values):
    """A server that is read before the first request has times below zero alone."""
    axis = Axis("t, s")
    low, high = axis_ends(axis, [Series("a", "line", values, values)], "x")
    assert low < high and axis_ticks(axis, low, high)
    assert all(low <= value <= high for value in values)


def test_the_library_is_what_its_notes_say():
    notes = (LIBRARY / "README.md").read_text(encoding="utf-8")
    recorded = re.findall(r"\| `([^`]+)` \| ([\d,]+) \| `([0-9a-f]{64})` \|", notes)
    assert {name for name, *_ in recorded} == {path.name for path in LIBRARY.iterdir()} - {"README.md"}
    for name, size, digest in recorded:
        content = (LIBRARY / name).read_bytes()
        assert (f"{len(content):,}", hashlib.sha256(content).hexdigest()) == (size, digest)
    version = re.search(r"\(v([\d.]+)\)", (LIBRARY / "uPlot.iife.min.js").read_text(encoding="utf-8"))[1]
    assert f"Version {version} of" in notes


def test_tpot_is_drawn_by_tokens_a_step_where_tokens_were_drafted(run):
    [first, *_] = [summary for summary in run.pooled if summary.valid]
    place = {"engine": first.engine, "label": first.label, "load": first.load}
    cells = [
        Speculation(
            **place, repeat=i, count=SpeculationCount(steps=steps, tokens_per_step=tokens, source="page")
        )
        for i, (steps, tokens) in enumerate([(100, 2.0), (300, 3.0)])
    ]
    [series] = acceptance(cells, run.pooled).series
    assert acceptance([], run.pooled) is None
    assert (series.label, list(series.x), list(series.y)) == (first.label, [2.75], [first.tpot_ms.p50])
