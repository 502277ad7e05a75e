"""Limits, frontiers and prices in the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.cli.report import report
from harness.errors import UsageError
from harness.records.columns import CHUNKS, REQUESTS, SERVER
from harness.report.charts.by_load import decision_charts
from harness.report.charts.over_time import power_charts, server_charts
from harness.report.decision import Asked, Decision, decide
from harness.report.tables.decision import decision_tables
from harness.report.text.numbers import DASH
from harness.runs.reader import Run, load_run
from harness.schema.limits import Slo, parse_gate
from harness.schema.machines import MachineLoad, Power, Prices

from ..conftest import ENGINES, make_online


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("decision") / "run"
    return make_online(place, engines=ENGINES[::2], closed=(2, 16), repeats=2, n=60, faults=False)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    found = load_run(folder, trust=True)
    assert isinstance(found, Run)
    return found


def decided(run: Run, limits: str) -> Decision:
    return decide(run, Asked(parse_gate(limits), Prices(machine=3.6)))


@pytest.mark.parametrize(("limit", "box"), [("ttft_p90<=100s", "pass"), ("ttft_p90<=0.001ms", "fail")])
def test_limits_that_all_loads_meet_and_that_none_meets(run: Run, limit: str, box: str) -> None:
    decision = decided(run, limit)
    assert len(decision.within) == 4
    assert {found.holds for found in decision.within} == {box == "pass"}
    assert {found.attained and found.attained.value for found in decision.within} == {float(box == "pass")}
    cost, within, _ = decision_tables(decision)
    best = decision.at_limits("roseinfer")
    if box == "pass":
        assert best is not None and "✓" in within.lines[0][2]
    else:
        assert best is None and "✗" in within.lines[0][2]
        assert [row[1].text for row in cost.rows] == ["no load within the limits"] * 2


def test_tokens_cost_what_the_hour_does(run: Run) -> None:
    decision = decided(run, "ttft_p90<=100s")
    for point in decision.served:
        cost = decision.cost(point)
        assert cost is not None and cost.value == pytest.approx(1e6 * 3.6 / 3600 / point.total.value)
        assert cost.ci is not None and cost.ci[0] < cost.value < cost.ci[1]
    best = decision.at_limits("vLLM")
    assert best is not None
    assert best.total.value == max(point.total.value for point in decision.served if point.label == "vLLM")


def test_energy_stands_beside_the_price_where_it_is_known(run: Run) -> None:
    unknown, first = decision_tables(decided(run, "ttft_p90<=100s"))[-1], run.pooled[0]
    counted = {"joules_per_output_token": 0.5, "joules_per_output_token_ci": (0.4, 0.6)}
    summaries = [s.model_copy(update=counted if s == first else {}) for s in run.results.summaries]
    known = replace(run, results=run.results.model_copy(update={"summaries": summaries}))
    frontier = decision_tables(decided(known, "ttft_p90<=100s"))[-1]
    assert "J/token" in frontier.headers and "J/token" not in unknown.headers
    place = frontier.headers.index("J/token")
    found = {(row[0].text, row[1].value): (row[place].value, row[place].ends) for row in frontier.rows}
    assert found.pop((first.label, first.load.value)) == (0.5, (0.4, 0.6))
    assert set(found.values()) == {(None, None)}


def test_a_run_is_held_to_its_own_service_level(run: Run) -> None:
    assert [term.text for term in decide(run).terms] == ["ttft_p99<=200ms", "tpot_p99<=12ms"]


def test_a_service_level_below_the_clock_is_held_to(run: Run) -> None:
    settings = run.meta.settings.model_copy(update={"slo": Slo(ttft_ms=1e-9)})
    meta = run.meta.model_copy(update={"settings": settings})
    [term] = decide(replace(run, results=run.results.model_copy(update={"meta": meta}))).terms
    assert (term.text, term.limit) == ("ttft_p99<=0.000000001ms", 1e-9)


def test_the_command_writes_what_was_asked_for(folder: Path, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("machine: 0.4\ncurrency: EUR\n")
    report([folder], tmp_path / "out.html", slo="ttft_p90<=77ms,tpot_p50<=9ms", price=prices)
    page = (tmp_path / "out.html").read_text()
    for words in (
        "ttft_p90&lt;=77ms",
        "EUR per million output tokens",
        "tok/s per user",
        "Limits and cost",
        "TPOT 9 ms",
        "Power over time: unknown",
    ):
        assert words in page
    assert "Power, W" not in page, "nothing counted it"
    with pytest.raises(UsageError, match="there is no statistic 'latency_p99'"):
        report([folder], tmp_path / "out.html", slo="latency_p99<=2ms")


def test_a_machine_without_a_price_is_an_error(run: Run) -> None:
    with pytest.raises(UsageError, match="the run used no GPU"):
        decide(run, Asked(prices=Prices(gpus={"H200": 3})))


def test_the_charts_have_every_load_once(run: Run) -> None:
    decision = decided(run, "ttft_p90<=100s,tpot_p99<=8ms")
    frontier, share, good = decision_charts(decision, run.pooled)
    drawn = [(series.label, x, y) for series in frontier.series if series.kind != "band"
             for x, y in zip(series.x, series.y, strict=True)]  # fmt: skip
    known = [(point.label, point.user.value, point.total.value) for point in decision.served]
    assert sorted(drawn) == sorted(known)
    assert [limit.value for limit in frontier.limits] == [125.0]
    for chart in (share, good):
        assert [len(series.x) for series in chart.series] == [2, 2]
    assert all(0 <= y <= 100 for series in share.series for y in series.y)


def test_the_charts_of_servers_have_what_these_say(run: Run) -> None:
    group = run.groups[0]
    said = {"cell": int(group.requests["cell"].iloc[0]), "took_ms": 1.0, "waiting": 0.0, "preemptions": 0.0}
    rows = [
        said | {"t": t, "running": t, "kv_usage": 0.5, "steps": 10 * t, "step_tokens": 40 * t}
        for t in (0.0, 1.0, 2.0)
    ]
    drawn = {
        chart.name: chart.series for chart in server_charts([group], pd.DataFrame(rows, columns=SERVER.names))
    }
    values = {name: [(list(series.x), list(series.y)) for series in found] for name, found in drawn.items()}
    assert values == {
        "server_running_in_flight_2": [([0, 1, 2], [0, 1, 2])],
        "server_kv_usage_in_flight_2": [([0, 1, 2], [50, 50, 50])],
        "server_steps_in_flight_2": [([1, 2], [4, 4])],
    }
    assert server_charts([group], pd.DataFrame(columns=SERVER.names)) == []


def test_power_over_time_stands_beside_tokens(run: Run) -> None:
    [group] = [g for g in run.groups if g.label == "roseinfer" and g.load.value == 16 and g.repeat == 0]
    [cell] = map(int, group.requests["cell"].unique())
    own = run.chunks[run.chunks["cell"] == cell]
    ends = [0.0, 1.5, float(own["t"].max()) + 1]
    parts = [Power(begin=a, end=b, watts=w) for a, b, w in zip(ends, ends[1:], (50, 70), strict=False)]
    quiet = {"seconds": 9, "samples": 3, "cpus": 2, "own_cpu_s": 1, "steal_share": 0}
    quiet |= {"foreign_cores_mean": 0, "foreign_cores_max": 0}
    machine = MachineLoad(power=parts, idle_watts=20, **quiet)
    power, tokens = power_charts([group], {cell: machine}, run.chunks)
    assert [list(series.y) for series in power.series] == [[50, 70], [20, 20]]
    [series] = tokens.series
    sent = [rate * (part.end - part.begin) for rate, part in zip(series.y, parts, strict=True)]
    assert sum(sent) == pytest.approx(own["tokens"].sum())
    assert sent[0] == pytest.approx(own.loc[own["t"] < 1.5, "tokens"].sum())
    assert power_charts([group], {cell: machine.model_copy(update={"power": []})}, run.chunks) == []


def test_a_withheld_percentile_is_a_dash(tmp_path: Path) -> None:
    """p90 of 40 requests is shown, p99 is not."""
    few = load_run(
        make_online(tmp_path / "few", engines=ENGINES[:1], repeats=1, n=40, faults=False), trust=True
    )
    assert isinstance(few, Run)
    decision = decided(few, "ttft_p90<=100s,ttft_p99<=100s")
    [within] = [table for table in decision_tables(decision) if table.name == "within"]
    for row in within.rows:
        assert row[2].text.endswith(("✓", "?")) and row[3].text == DASH
    assert any(note.startswith(f"{DASH}: there is none, or it is withheld") for note in within.notes)
    assert not any(found.holds for found in decision.within), "what is not known is not within the limits"


def test_what_failed_is_within_no_limit(tmp_path: Path) -> None:
    """One of two repeats at 2 in flight, and all at 16."""
    place = make_online(
        tmp_path / "failed", engines=ENGINES[:1], closed=(2, 16), repeats=2, n=40, faults=False
    )
    requests = pq.read_table(place / "requests.parquet").to_pandas()
    lost = requests["cell"].isin([1, 2, 3])
    requests.loc[lost, "error"] = "http"
    requests.loc[lost, ["t_first", "t_last", "completion_tokens"]] = None
    pq.write_table(pa.Table.from_pandas(requests, REQUESTS, preserve_index=False), place / "requests.parquet")
    chunks = pq.read_table(place / "chunks.parquet").to_pandas()
    kept = pa.Table.from_pandas(chunks[chunks["cell"] == 0], CHUNKS, preserve_index=False)
    pq.write_table(kept, place / "chunks.parquet")
    failed = load_run(place)
    assert isinstance(failed, Run)
    decision = decided(failed, "ttft_p50<=100s,error_rate<=20%")
    found = {point.load.value: point for point in decision.within}
    half, none = found[2], found[16]
    assert half.attained is not None and half.attained.value == 0.5 and not half.holds
    assert none.attained is not None and none.attained.value == 0
    cells = decision_tables(decision)[1].rows[decision.within.index(none)]
    assert cells[3].text.endswith("✗")
    [point] = decision.served
    assert not point.valid
    assert [table.lines[0][0] for table in decision_tables(decision)[1:]] == ["roseinfer †"] * 2


def test_the_share_within_is_the_one_that_the_first_table_has(run: Run) -> None:
    shares = {(found.label, found.load): found.attained for found in decide(run).within}
    for summary in run.pooled:
        known = shares[summary.label, summary.load]
        assert known is not None and summary.slo_met == pytest.approx(known.value)


def test_both_forms_of_a_limit_are_one(run: Run) -> None:
    assert parse_gate("ttft_ms=200, tpot_ms=30") == parse_gate("ttft_p99<=200ms, tpot_p99<=30ms")
    assert decided(run, "ttft_ms=200").terms == decided(run, "ttft_p99<=200ms").terms
