"""How cells are measured: how long they last, by how many clients, and what servers that fail cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cluster import this_machine as this_machine_module
from harness.engines.base import EngineVariant
from harness.errors import BenchError
from harness.records.parquet import read_records
from harness.report.notices import facts_of
from harness.runs.cell_runner import warmup_hint
from harness.runs.events import CellProgress, Event, LateClient, TooFewClients
from harness.runs.reader import load_run
from harness.schema.facts import FELL_BEHIND, Fact, Value
from harness.schema.results import OnlineResults
from harness.schema.setting_types import Uniform
from harness.traces.sampling import shape_seeds
from harness.workload.content import SyntheticContent
from tests.harness.measured import calibration_of, resume_online, run_online

from .conftest import Make, Watcher, interrupted, journal


@pytest.mark.parametrize(
    ("error", "tokens", "started", "hint", "of_settings"),
    [
        ("http_404", None, False, "check --endpoint and --served-model", True),
        ("http_404", None, True, "`served_name` in the engine's adapter", True),
        ("wrong_length", 4, False, "--no-ignore-eos", True),
        ("wrong_length", 9, False, "more tokens than the request's max_tokens", False),
        ("only_reasoning", None, False, "raise --output-len", True),
        ("no_usage", None, False, "`usage` at the end of the stream", False),
        ("truncated", None, False, "finish_reason", False),
        ("stream_error", None, False, "see the engine's log", False),
    ],
)
def test_a_hint_for_each_kind(error, tokens, started, hint, of_settings):
    failed = {"error": error, "completion_tokens": tokens, "output_tokens": 8}
    found, changes = warmup_hint(failed, started)
    assert hint in found and changes == of_settings


pytestmark = pytest.mark.usefixtures("any_lag")

LOOP: dict[str, Any] = {"concurrency": [4], "n": 8, "input_len": 16, "output_len": 8}


def loads(watcher: Watcher, repeat: int = 0) -> list[int]:
    """The requests of each load of a repeat's cell: it is sent again until it lasts."""
    begun = [event for event in watcher.of(CellProgress) if not event.progress.completed]
    return list(dict.fromkeys(event.requests for event in begun if event.cell.repeat == repeat))


def brief(results: OnlineResults) -> list[dict[str, Value]]:
    return [fact.values for fact in results.summaries[-1].notices if fact.kind == "brief"]


def test_a_closed_loop_gets_more_requests_with_prompts_of_their_own(start_mock, settings_for):
    server, watcher = start_mock(), Watcher()
    settings = settings_for(server.url, min_duration=0.5, repeats=2, **LOOP)
    folder, results = run_online(settings, notify=watcher)
    first, second = loads(watcher, 0), loads(watcher, 1)
    assert first[0] == 8 < first[-1] == second[0], "the next repeat needs no trial"
    for repeat, summary in enumerate(results.summaries[:2]):
        assert summary.duration_s >= 0.4 and summary.num_error == 0 and summary.left_out == 0
        assert loads(watcher, repeat)[-1] == summary.num_requests
        assert summary.num_requests % 4 == 0, "the last round is not whole"
    [values] = brief(results)
    assert "wanted_s" not in values
    requests = read_records(folder).requests
    assert len(requests) == results.summaries[-1].num_requests
    assert (requests["reusable_tokens"] == 0).all()


def test_a_server_that_refuses_is_not_asked_for_longer(start_mock: Any, settings_for: Make) -> None:
    """It refuses quickly: as many requests as fill the time would be thousands."""
    server, watcher = start_mock(script=[{}] * 8 + [{"status": 429}] * 1000), Watcher()
    run_online(settings_for(server.url, min_duration=0.5, **LOOP), notify=watcher)
    assert loads(watcher) == [8]


@pytest.mark.parametrize("may_know", [True, False])
def test_the_same_prompts_are_sent_again_where_no_cache_can_know_them(
    shared_mock: Any, settings_for: Make, monkeypatch: pytest.MonkeyPatch, may_know: bool
) -> None:
    """So an engine that is measured with more requests has those of a slower one among them."""
    monkeypatch.setattr(EngineVariant, "may_know_prompts", lambda variant, prefix_cache: may_know)
    watcher = Watcher()
    settings = settings_for(shared_mock.url, min_duration=0.5, **LOOP | {"input_len": "uniform:2:60"})
    folder, _ = run_online(settings, notify=watcher)
    [*tries, measured] = loads(watcher)
    requests = read_records(folder).requests.sort_values("request")
    content = SyntheticContent(Uniform(least=2, most=60), 8, 100)
    before = sum(tries) if may_know else 0
    inputs, _ = content.lengths(measured, shape_seeds(settings.seed, 0, 1)[0], before)
    assert tries and requests["input_tokens"].tolist() == inputs.tolist()


def test_settling_is_left_out_and_the_rest_lasts(shared_mock: Any, settings_for: Make) -> None:
    settings = settings_for(shared_mock.url, settle=0.5, min_duration=0.5, **LOOP)
    folder, results = run_online(settings)
    summary = results.summaries[-1]
    assert summary.window_s is not None and summary.window_s[0] == 0.5 and summary.window_s[1] >= 1
    assert summary.left_out > 8 and summary.num_error == 0
    requests = read_records(folder).requests
    assert summary.num_requests == (requests["t_sent"] >= 0.5).sum()


def test_a_trace_is_taken_longer(shared_mock: Any, settings_for: Make, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i / 10},8,4\n" for i in range(60)))
    url = shared_mock.url
    given = {"trace": str(trace), "scales": [0.1, 0.2], "n": 4}
    _, results = run_online(settings_for(url, min_duration=0.5, **given))
    counts = {summary.load.value: summary.num_requests for summary in results.summaries}
    assert counts == {0.1: 51, 0.2: 26}
    assert all(summary.duration_s >= 0.5 for summary in results.summaries)
    assert results.meta.trace is not None and results.meta.trace.requests == 51

    _, results = run_online(settings_for(url, min_duration=600, **given | {"scales": [0.1]}))
    assert results.summaries[-1].num_requests == 60
    [values] = brief(results)
    assert float(values["wanted_s"]) > float(values["seconds"])


def test_nothing_is_left_after_settling(shared_mock: Any, settings_for: Make, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,8,4\n1,8,4\n")
    settings = settings_for(shared_mock.url, settle=600, scales=[0.01], trace=str(trace))
    _, results = run_online(settings)
    assert results.summaries[-1].invalid_reasons[0].kind == "unmeasured"


BUSY_LOOP: dict[str, Any] = {"concurrency": [3, 4], "n": 12, "input_len": 32, "output_len": 7}
Can = Callable[[dict[int, float], int], None]


@pytest.fixture
def can(monkeypatch: pytest.MonkeyPatch) -> Can:
    """Says how many requests a second each of so many client processes can send, and how many this machine
    should run."""

    def say(requests_per_s: dict[int, float], most: int) -> None:
        found = calibration_of({processes: (1e9, rate) for processes, rate in requests_per_s.items()})
        monkeypatch.setattr(this_machine_module, "load_calibration", lambda: found)
        monkeypatch.setattr(this_machine_module.ThisMachine, "clients", lambda *_: (1, most))

    return say


def clients(folder: Path) -> list[int]:
    """How many client processes sent each cell."""
    return [len(line["clients"]) for line in journal(folder)]


def answered(server: Any) -> int:
    """Requests of cells that a server has answered; others, which look at what it can do, are shorter."""
    return sum(len(served.writes) == BUSY_LOOP["output_len"] for served in server.served_requests)


def asked_again(watch: Watcher) -> list[tuple[int, int, int]]:
    return [(event.cell.index, event.clients, event.more) for event in watch.of(TooFewClients)]


def test_a_cell_is_measured_again_by_more(start_mock: Any, settings_for: Make, can: Can) -> None:
    can({1: 0.01, 3: 1e9}, 3)
    server = start_mock(script=[{"ttft_ms": 30, "cached_ttft_ms": 1, "cached_tokens": 0}])
    watch = Watcher()
    folder, results = run_online(settings_for(server.url, **BUSY_LOOP), notify=watch)
    assert asked_again(watch) == [(0, 1, 3)] and clients(folder) == [3, 3]
    assert all(summary.valid for summary in results.summaries)
    assert min(summary.ttft_ms.p50 for summary in results.summaries) > 25, "the prompts came before"
    requests = read_records(folder).requests
    assert (requests.groupby("cell").size() == 12).all() and {*requests["client"]} == {0, 1, 2}
    assert answered(server) == 3 * 12
    assert (results.meta.settings.clients, results.meta.most_clients) == (1, 3)


@pytest.mark.parametrize(("loop", "events", "counts"), [([3, 4], [], [3, 3]), ([1, 3], [(1, 1, 3)], [1, 3])])
def test_a_run_that_is_resumed_goes_on_with_as_many_or_more(
    shared_mock: Any, settings_for: Make, can: Can, loop: list[int], events: Any, counts: list[int]
) -> None:
    can({1: 0.01, 3: 1e9}, 3)
    folder = interrupted(settings_for(shared_mock.url, **BUSY_LOOP | {"concurrency": loop}))
    resume_online(folder, watch := Watcher())
    assert asked_again(watch) == events and clients(folder) == counts


def test_the_most_can_be_too_few(shared_mock: Any, settings_for: Make, can: Can) -> None:
    can({1: 0.01}, 2)
    watch = Watcher()
    settings = settings_for(shared_mock.url, **BUSY_LOOP | {"concurrency": [4]})
    folder, results = run_online(settings, notify=watch)
    assert asked_again(watch) == [(0, 1, 2)] and clients(folder) == [2]
    for summary in results.summaries:
        [reason] = summary.invalid_reasons
        assert reason.kind == "busy" and reason.values["unit"] == "requests"


def test_a_cell_is_sent_so_often_at_most(start_mock, settings_for, can, monkeypatch):
    can({1: 0.01}, 9)
    monkeypatch.setattr(
        "harness.runs.cell_runner.clients_needed", lambda requests, *_: requests["client"].max() + 2
    )
    watch, server = Watcher(), start_mock()
    settings = settings_for(server.url, **BUSY_LOOP | {"concurrency": [8]})
    folder, _ = run_online(settings, notify=watch)
    assert asked_again(watch) == [(0, 1, 2), (0, 2, 3), (0, 3, 4)] and clients(folder) == [4]
    assert answered(server) == 4 * 12


def test_more_clients_for_a_loop_that_is_too_short(shared_mock: Any, settings_for: Make, can: Can) -> None:
    can({1: 0.01, 2: 1e9}, 2)
    watch = Watcher()
    settings = settings_for(shared_mock.url, min_duration=0.4, **BUSY_LOOP | {"concurrency": [4]})
    folder, results = run_online(settings, notify=watch)
    assert asked_again(watch) == [(0, 1, 2)] and clients(folder) == [2]
    assert results.summaries[0].duration_s >= 0.4 and results.summaries[0].num_requests % 4 == 0


@pytest.mark.parametrize(
    "given",
    [
        BUSY_LOOP | {"clients": 1, "concurrency": [4]},
        BUSY_LOOP | {"concurrency": [1]},
        {"scales": [0.01]},
        {"request_rate": "100", "n": 8, "input_len": 16, "output_len": 4},
    ],
)
def test_what_is_not_measured_again(shared_mock, settings_for, can, monkeypatch, given):
    """A number that was given, one request in flight, and loads that every engine gets alike."""
    can({1: 0.01, 2: 1e9}, 2)
    monkeypatch.setattr("harness.runs.resolved.CLIENT_SHARE", 1e9)  # the estimate is too low
    watch = Watcher()
    folder, results = run_online(settings_for(shared_mock.url, **given), notify=watch)
    assert asked_again(watch) == [] and set(clients(folder)) == {1}
    assert all(summary.invalid_reasons[0].kind == "busy" for summary in results.summaries)


def test_a_rate_of_short_answers_begins_with_enough(shared_mock: Any, settings_for: Make, can: Can) -> None:
    can({1: 8.0, 2: 1e9}, 2)
    given = {"request_rate": "100", "n": 8, "input_len": 16, "output_len": 1}
    folder, results = run_online(settings_for(shared_mock.url, **given))
    assert clients(folder) == [2] and all(summary.valid for summary in results.summaries)


def test_a_cell_with_failed_requests_is_not_measured_again(start_mock, settings_for, can):
    can({1: 0.01, 2: 1e9}, 2)
    watch = Watcher()
    settings = settings_for(start_mock(script=[{"error_after": 6}]).url, **BUSY_LOOP | {"concurrency": [4]})
    folder, results = run_online(settings, notify=watch)
    assert asked_again(watch) == [] and clients(folder) == [1]
    assert all(summary.num_error for summary in results.summaries)


def test_a_cell_is_measured_again_as_its_client_was_late(
    start_mock: Any, settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three cells: not at all, once, and then always."""
    late = [Fact(kind="late", values={"lag_ms": 5.0 + i}) for i in range(9)]
    shown = [None, late[0], None, *late[1:]]
    lags = {1: [5.0], 2: [6.0, 7.0]}
    monkeypatch.setattr("harness.runs.cell_runner.MAX_AGAIN", 2)
    monkeypatch.setattr("harness.runs.cell_runner.late_alone", lambda group: shown.pop(0))
    server, watch = start_mock(), Watcher()
    settings = settings_for(server.url, concurrency=[1, 2, 3], n=6, input_len=16, output_len=7)
    folder, results = run_online(settings, notify=watch)
    assert [event.late.values["lag_ms"] for event in watch.of(LateClient)] == [5.0, 6.0, 7.0]
    assert [line["late_before"] for line in journal(folder)] == [[], *lags.values()]
    assert results.late_before == lags
    assert answered(server) == 6 * (1 + 2 + 3)
    assert (read_records(folder).requests.groupby("cell").size() == 6).all()
    facts = [fact for fact in facts_of(load_run(folder)) if fact.kind == "measured_again"]
    assert [fact.values for fact in facts] == [
        {"times": len(each), "lag_ms": each[-1]} for each in lags.values()
    ]


ARRIVALS, PER_SECOND = 40, 100
RATE_LOAD: dict[str, Any] = {
    "request_rate": f"{PER_SECOND}", "arrivals": "constant", "n": ARRIVALS, "input_len": 16, "output_len": 3,
}  # fmt: skip


#: Requests that look at what a server can do, before the load is sent.
LOOKS = 3


@pytest.fixture
def notice(start_mock: Any, settings_for: Make) -> Callable[..., Fact]:
    """The notice that a server fell behind which answers the load's requests in these ways, in turn."""

    def run(answers: list[dict[str, Any]], **given: Any) -> Fact:
        settings = settings_for(start_mock(script=[{}] * LOOKS + answers).url, **RATE_LOAD | given)
        _, results = run_online(settings)
        [summary] = [summary for summary in results.summaries if summary.repeat is None]
        [fact] = [fact for fact in summary.notices if fact.kind in FELL_BEHIND]
        return fact

    return run


def test_a_server_that_never_answers(notice: Callable[..., Fact]) -> None:
    fact = notice([{"silent": True}] * ARRIVALS, timeout_s=1.5)
    assert fact.kind == "behind" and fact.values["answered"] == 0
    assert fact.values["offered"] == pytest.approx(100, rel=0.05)


def test_a_server_that_answers_a_few(notice: Callable[..., Fact]) -> None:
    assert notice([{}] * 4 + [{"silent": True}] * (ARRIVALS - 4), timeout_s=1.5).kind == "behind"


def test_a_server_that_begins_when_all_requests_are_there(notice: Callable[..., Fact]) -> None:
    """It answers all of them at the same time."""
    fact = notice([{"ttft_ms": 2000 - 1000 * i / PER_SECOND} for i in range(ARRIVALS)])
    assert fact.kind == "stalled" and 2 <= float(fact.values["stalled_s"]) < 3


def test_a_server_that_is_lost_in_the_middle_of_a_cell(start_mock: Any, settings_for: Make) -> None:
    server = start_mock(script=[{}] * (LOOKS + 1) + [{"silent": True}] * 2)

    def end_after_one(event: Event) -> None:
        if isinstance(event, CellProgress) and event.progress.completed == 1:
            server.end()

    settings = settings_for(server.url, concurrency=[1], n=3, input_len=16, output_len=3)
    with pytest.raises(BenchError, match="in the middle of the cell: 1 of 3 requests had been answered"):
        run_online(settings, notify=end_after_one)


def test_a_warm_up_of_a_number_keeps_to_the_load(start_mock: Any, settings_for: Any) -> None:
    server = start_mock()
    loop = {"concurrency": [2], "input_len": 4, "output_len": 4, "n": 2, "scales": [1.0]}
    run_online(settings_for(server.url, server_metrics=False, **loop | {"warmup": 7}))
    asked = [served for served in server.served_requests if served.writes]
    at_once = [sum(a.t_received <= b.t_received < a.t_end for a in asked) for b in asked]
    assert len(asked) > 7 + 2 and max(at_once) == 2
