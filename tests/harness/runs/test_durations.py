"""How long a cell lasts: settled, extended, or noticed as short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import EngineVariant
from harness.records.parquet import read_records
from harness.runs.events import CellProgress
from harness.schema.facts import Value
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from harness.schema.setting_types import Uniform
from harness.traces.sampling import shape_seeds
from harness.workload.content import SyntheticContent
from tests.harness.measured import run_online

from .conftest import Make, Watcher, report_of

pytestmark = pytest.mark.integration

LOOP: dict[str, Any] = {"concurrency": [4], "n": 8, "input_len": 16, "output_len": 8}


def loads(watcher: Watcher, repeat: int = 0) -> list[int]:
    """The requests of each load of a repeat's cell: it is sent again until it lasts."""
    begun = [event for event in watcher.of(CellProgress) if not event.progress.completed]
    return list(dict.fromkeys(event.requests for event in begun if event.cell.repeat == repeat))


def brief(results: OnlineResults) -> list[dict[str, Value]]:
    return [fact.values for fact in results.summaries[-1].notices if fact.kind == "brief"]


def test_a_closed_loop_gets_more_requests_with_prompts_of_their_own(
    start_mock: Any, settings_for: Make
) -> None:
    server, watcher = start_mock(), Watcher()
    folder, results = run_online(settings_for(server.url, min_duration=0.5, **LOOP), ["bench"], watcher)
    summary = results.summaries[-1]
    assert summary.duration_s >= 0.5 and summary.num_error == 0
    assert loads(watcher)[0] == 8 < loads(watcher)[-1] == summary.num_requests and summary.left_out == 0
    assert summary.num_requests % 4 == 0, "the last round is not whole"
    [values] = brief(results)
    assert "wanted_s" not in values
    requests = read_records(folder).requests
    assert len(requests) == summary.num_requests
    assert (requests["reusable_tokens"] == 0).all()
    report_of(folder)
    for file in ("summary.md", "report.html"):
        assert "Cells are short." in (folder / file).read_text()
    assert "coordinated omission" in (folder / "report.html").read_text()


def test_a_server_that_refuses_is_not_asked_for_longer(
    start_mock: Any, settings_for: Make, tmp_path: Path
) -> None:
    """It refuses quickly: as many requests as fill the time would be thousands."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{}] * 8 + [{"status": 429}] * 1000))
    server, watcher = start_mock("--script", str(script)), Watcher()
    run_online(settings_for(server.url, min_duration=0.5, **LOOP), ["bench"], watcher)
    assert loads(watcher) == [8]


def test_the_next_repeat_of_a_closed_loop_begins_with_enough_requests(
    start_mock: Any, settings_for: Make
) -> None:
    watcher = Watcher()
    run_online(settings_for(start_mock().url, min_duration=0.5, repeats=2, **LOOP), ["bench"], watcher)
    first, second = loads(watcher, 0), loads(watcher, 1)
    assert first[0] == 8 < first[-1] == second[0]


@pytest.mark.parametrize("may_know", [True, False])
def test_the_same_prompts_are_sent_again_where_no_cache_can_know_them(
    start_mock: Any, settings_for: Make, monkeypatch: pytest.MonkeyPatch, may_know: bool
) -> None:
    """So an engine that is measured with more requests has those of a slower one among them."""
    monkeypatch.setattr(EngineVariant, "may_know_prompts", lambda variant, prefix_cache: may_know)
    watcher = Watcher()
    settings = settings_for(start_mock().url, min_duration=0.5, **LOOP | {"input_len": "uniform:2:60"})
    folder, _ = run_online(settings, ["bench"], watcher)
    [*tries, measured] = loads(watcher)
    requests = read_records(folder).requests.sort_values("request")
    content = SyntheticContent(Uniform(least=2, most=60), 8, 100)
    before = sum(tries) if may_know else 0
    inputs, _ = content.lengths(measured, shape_seeds(settings.seed, 0, 1)[0], before)
    assert tries and requests["input_tokens"].tolist() == inputs.tolist()


def test_settling_is_left_out_and_the_rest_lasts(start_mock: Any, settings_for: Make) -> None:
    settings = settings_for(start_mock().url, settle=0.5, min_duration=0.5, **LOOP)
    folder, results = run_online(settings, ["bench"], Watcher())
    summary = results.summaries[-1]
    assert summary.window_s is not None and summary.window_s[0] == 0.5 and summary.window_s[1] >= 1
    assert summary.left_out > 8 and summary.num_error == 0
    requests = read_records(folder).requests
    assert summary.num_requests == (requests["t_sent"] >= 0.5).sum()


def test_a_trace_is_taken_longer(start_mock: Any, settings_for: Make, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i / 10},8,4\n" for i in range(60)))
    url = start_mock().url
    given = {"trace": str(trace), "scales": [0.1, 0.2], "n": 4}
    _, results = run_online(settings_for(url, min_duration=0.5, **given), ["bench"], Watcher())
    counts = {summary.load.value: summary.num_requests for summary in results.summaries}
    assert counts == {0.1: 51, 0.2: 26}
    assert all(summary.duration_s >= 0.5 for summary in results.summaries)
    assert results.meta.trace is not None and results.meta.trace.requests == 51

    _, results = run_online(
        settings_for(url, min_duration=600, **given | {"scales": [0.1]}), ["bench"], Watcher()
    )
    assert results.summaries[-1].num_requests == 60
    [values] = brief(results)
    assert float(values["wanted_s"]) > float(values["seconds"])


def test_nothing_is_left_after_settling(start_mock: Any, settings_for: Make, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,8,4\n1,8,4\n")
    settings = settings_for(start_mock().url, settle=600, scales=[0.01], trace=str(trace))
    _, results = run_online(settings, ["bench"], Watcher())
    assert results.summaries[-1].invalid_reasons[0].kind == "unmeasured"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"settle": 1, "steady_state": True}, "--settle is a window of its own"),
        ({"settle": 1, "window": "0,1"}, "--settle is a window of its own"),
        ({"settle": -1}, "greater than 0"),
        ({"min_duration": 0}, "greater than 0"),
    ],
)
def test_bad_durations(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        OnlineSettings(**given)
